"""What each technique is: its values, titles, rules with reasons, needs, savings and costs. Imports no torch."""
