/* NVML's functions as far as autotune asks them: what each returns is set by the environment. GPU n is handle n + 1;
 * the first one's memory in use (MiB) is read of the file STUB_LEVEL at each call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } process_t;

static int code(const char *name) { const char *set = getenv(name); return set ? atoi(set) : 0; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return code("STUB_INIT"); }
const char *nvmlErrorString(int error) { return error == 999 ? "Unknown Error" : "some error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "580.1", size); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = getenv("STUB_COUNT") ? code("STUB_COUNT") : 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(index + 1ul); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) { *handle = (void *)(uuid[4] - '0' + 0ul); return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    (void)handle; *current = *pending = code("STUB_MIG"); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    (void)handle; *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    strncpy(text, "GPU-11111111-2222-3333-4444-555555555555", size); text[4] = (char)('0' + (long)handle); return 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    (void)handle; strncpy(text, "NVIDIA H200", size); return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *energy) {
    (void)handle; *energy = 5000; return code("STUB_ENERGY"); }
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    unsigned long long level = 600;
    FILE *file = getenv("STUB_LEVEL") && (long)handle == 1 ? fopen(getenv("STUB_LEVEL"), "r") : 0;
    if (file) { if (fscanf(file, "%llu", &level) != 1) level = 600; fclose(file); }
    memory->total = 143771ull << 20; memory->used = level << 20;
    memory->free = memory->total - memory->used; return code("STUB_MEMORY"); }
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *found) {
    (void)handle;
    if (code("STUB_PROCESSES")) return code("STUB_PROCESSES");
    if (!getenv("STUB_PID")) { *count = 0; return 0; }
    if (!found || *count < 1) { *count = 1; return 7; } /* the array is too small */
    *count = 1; memset(found, 0, sizeof *found); found->pid = code("STUB_PID"); return 0; }
