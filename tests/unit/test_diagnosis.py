from autotune import diagnosis
from autotune.candidate import choices
from autotune.diagnosis import diagnose


def found():
    return {finding.subject: finding for finding in diagnose()}


def test_doctor_says_which_techniques_this_machine_lacks_something_for(monkeypatch):
    monkeypatch.setattr(diagnosis, "installed", lambda package: None)
    missing = found()
    assert "pip install 'autotune[bitsandbytes]'" in missing["adamw-8bit"].text
    assert "pip install flash-attn" in missing["flash_attention_2"].text
    assert missing["adamw-8bit"].state == missing["flash_attention_2"].state == "warning"
    monkeypatch.setattr(diagnosis, "installed", lambda package: "9.9.9")
    assert found()["adamw-8bit"].state == "ok"
    assert {"flash_attention_2", "flex_attention"} < set(choices("attention"))


def test_the_ladder_is_legal_from_rung_to_rung():
    from autotune.candidate import Candidate
    from autotune.options import load_space
    from autotune.rules import illegal

    space = load_space("everything")
    rungs = space.rungs(Candidate())
    assert len(rungs) > 8
    assert not [rung for rung in rungs if illegal(rung)]
    assert any(rung.activation_offload and rung.offload == "full" for rung in rungs)
