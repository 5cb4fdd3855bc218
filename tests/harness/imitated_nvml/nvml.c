/*
 * A library with NVML's binary interface and no driver behind it: functions and structures are laid
 * out as nvidia-ml-py declares them, and answer what the script of a test says (see driver.h).
 *
 * With OLD_DRIVER the symbols are missing that drivers before R510 lack.
 */

#include "session.h"

#include <stdio.h>
#include <string.h>

#define MEMORY_V2 0x02000028u

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned int version; unsigned long long total, reserved, free, used; };
struct utilization { unsigned int gpu, memory; };

static int give(long long figure, unsigned int *into)
{
    if (figure == UNTOLD)
        return NOT_SUPPORTED;
    *into = (unsigned int)figure;
    return SUCCESS;
}

static int give_wide(long long figure, unsigned long long *into)
{
    if (figure == UNTOLD)
        return NOT_SUPPORTED;
    *into = (unsigned long long)figure;
    return SUCCESS;
}

static int give_text(const char *text, char *into, unsigned int length)
{
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(into, text);
    return SUCCESS;
}

const char *nvmlErrorString(int result)
{
    static char text[TEXT_MAX];
    snprintf(text, sizeof text, "imitated error %d", result);
    return text;
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER;
    return give_text(driver.version, version, length);
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER;
    *count = (unsigned int)driver.gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **device)
{
    ENTER;
    if (index >= (unsigned int)driver.gpu_count)
        return INVALID_ARGUMENT;
    struct device *found = handle_of(driver.gpus[index].uuid);
    code = scripted(&driver, found, __func__);
    *device = found;
    return code;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device)
{
    ENTER;
    for (int i = 0; i < driver.gpu_count; i++) {
        if (strcmp(driver.gpus[i].uuid, uuid) == 0) {
            *device = handle_of(uuid);
            return scripted(&driver, *device, __func__);
        }
    }
    return NOT_FOUND;
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER;
    *version = driver.cuda;
    return driver.cuda ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetComputeMode(struct device *device, unsigned int *mode)
{
    ENTER_GPU(device);
    return give(gpu->compute_mode, mode);
}

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned int length)
{
    ENTER_GPU(device);
    return give_text(gpu->uuid, uuid, length);
}

int nvmlDeviceGetName(struct device *device, char *name, unsigned int length)
{
    ENTER_GPU(device);
    return give_text(gpu->name, name, length);
}

/* The first version counts what the driver keeps for itself as used. */
int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory)
{
    ENTER_GPU(device);
    long long used = gpu->used + gpu->reserved;
    *memory = (struct memory){gpu->total, gpu->total - used, used};
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *rates)
{
    ENTER_GPU(device);
    if (gpu->mig == 1)
        return NOT_SUPPORTED;
    code = give(gpu->utilization, &rates->gpu);
    return code == SUCCESS ? give(gpu->memory_utilization, &rates->memory) : code;
}

int nvmlDeviceGetPowerUsage(struct device *device, unsigned int *milliwatts)
{
    ENTER_GPU(device);
    return give(gpu->power, milliwatts);
}

int nvmlDeviceGetTotalEnergyConsumption(struct device *device, unsigned long long *millijoules)
{
    ENTER_GPU(device);
    return give_wide(gpu->energy, millijoules);
}

int nvmlDeviceGetTemperature(struct device *device, int sensor, unsigned int *celsius)
{
    ENTER_GPU(device);
    return sensor == 0 ? give(gpu->temperature, celsius) : INVALID_ARGUMENT;
}

int nvmlDeviceGetTotalEccErrors(struct device *device, int kind, int counter,
                                unsigned long long *errors)
{
    ENTER_GPU(device);
    if (kind != 1 || counter != 0)
        return INVALID_ARGUMENT;
    return give_wide(gpu->ecc, errors);
}

int nvmlDeviceGetRemappedRows(struct device *device, unsigned int *correctable,
                              unsigned int *uncorrectable, unsigned int *pending,
                              unsigned int *failed)
{
    ENTER_GPU(device);
    unsigned int *into[] = {correctable, uncorrectable, pending, failed};
    for (int i = 0; i < 4 && code == SUCCESS; i++)
        code = give(gpu->remapped[i], into[i]);
    return code;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device, unsigned long long *reasons)
{
    ENTER_GPU(device);
    return give_wide(gpu->throttle, reasons);
}

int nvmlDeviceGetMigMode(struct device *device, unsigned int *current, unsigned int *pending)
{
    ENTER_GPU(device);
    code = give(gpu->mig, current);
    return code == SUCCESS ? give(gpu->mig_pending, pending) : code;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned int *count)
{
    ENTER_GPU(device);
    *count = 7;
    return gpu->mig == UNTOLD ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned int index,
                                        struct device **instance)
{
    char uuid[2 * TEXT_MAX];
    ENTER_GPU(device);
    if (index >= (unsigned int)gpu->mig_instances)
        return NOT_FOUND;
    snprintf(uuid, sizeof uuid, "MIG-%u-%s", index, gpu->uuid);
    *instance = handle_of(uuid);
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(struct device *device, struct device *other, int kind, int *status)
{
    ENTER_GPU(device);
    const struct gpu *peer = gpu_of(&driver, other);
    *status = 1;
    for (int i = 0; i < gpu->link_count; i++)
        if (kind == 2 && peer == &driver.gpus[gpu->links[i]])
            *status = 0;
    return SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(struct device *device, struct device *other, int *level)
{
    ENTER_GPU(device);
    const struct gpu *peer = gpu_of(&driver, other);
    if (peer == NULL || gpu->numa == UNTOLD || peer->numa == UNTOLD)
        return NOT_SUPPORTED;
    *level = gpu->numa == peer->numa ? 20 : 50;
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory)
{
    ENTER_GPU(device);
    if (memory->version != MEMORY_V2)
        return ARGUMENT_VERSION_MISMATCH;
    long long free = gpu->total - gpu->reserved - gpu->used;
    *memory = (struct memory_v2){MEMORY_V2, gpu->total, gpu->reserved, free, gpu->used};
    return SUCCESS;
}
#endif
