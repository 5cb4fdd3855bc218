/* Processes, samples of their utilization, and events: what NVML tells in lists. */

#include "session.h"

#include <string.h>

#define XID_EVENT 0x8ULL
#define NO_INSTANCE 0xFFFFFFFFu
#define SETS_MAX 16

struct event_set { int used, registered[DEVICES_MAX], seen[DEVICES_MAX]; };
struct process_info { unsigned int pid; unsigned long long memory; unsigned int gi, ci; };
struct process_sample { unsigned int pid; unsigned long long time; unsigned int sm, mem, enc, dec; };
struct event { struct device *device; unsigned long long type, data; unsigned int gi, ci; };

static struct event_set sets[SETS_MAX];
static int crowded_answers;

void free_event_sets(void)
{
    memset(sets, 0, sizeof sets);
}

/* Without room it says how much is needed; more processes may have come by the second call. */
static int list(struct driver *driver, const struct gpu *gpu, int graphics, unsigned int *count,
                struct process_info *infos)
{
    unsigned int room = *count, needed = 0;
    for (int i = 0; i < gpu->process_count; i++) {
        const struct process *process = &gpu->processes[i];
        if (process->graphics != graphics)
            continue;
        if (infos != NULL && needed < room)
            infos[needed] = (struct process_info){process->pid, process->memory, NO_INSTANCE,
                                                  NO_INSTANCE};
        needed++;
    }
    *count = needed;
    if (driver->crowded == 0)
        crowded_answers = 0;
    if (infos != NULL && crowded_answers < driver->crowded && ++crowded_answers)
        return INSUFFICIENT_SIZE;
    return needed > 0 && (infos == NULL || needed > room) ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(struct device *device, unsigned int *count,
                                            struct process_info *infos)
{
    ENTER_GPU(device);
    return list(&driver, gpu, 0, count, infos);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(struct device *device, unsigned int *count,
                                             struct process_info *infos)
{
    ENTER_GPU(device);
    return list(&driver, gpu, 1, count, infos);
}

int nvmlDeviceGetProcessUtilization(struct device *device, struct process_sample *samples,
                                    unsigned int *count, unsigned long long since)
{
    ENTER_GPU(device);
    unsigned int room = *count, needed = 0;
    if (gpu->mig == 1)
        return NOT_SUPPORTED;
    for (int i = 0; i < gpu->sample_count; i++) {
        const struct sample *one = &gpu->samples[i];
        if (one->time <= since)
            continue;
        if (samples != NULL && needed < room)
            samples[needed] = (struct process_sample){one->pid, one->time, one->busy, 0, 0, 0};
        needed++;
    }
    *count = needed;
    if (needed == 0)
        return NOT_FOUND;
    return samples == NULL || needed > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlEventSetCreate(struct event_set **set)
{
    ENTER;
    for (int i = 0; i < SETS_MAX; i++) {
        if (sets[i].used)
            continue;
        sets[i].used = 1;
        *set = &sets[i];
        return SUCCESS;
    }
    return INSUFFICIENT_SIZE;
}

int nvmlEventSetFree(struct event_set *set)
{
    memset(set, 0, sizeof *set);
    return SUCCESS;
}

/* Only what comes later is told. */
int nvmlDeviceRegisterEvents(struct device *device, unsigned long long kinds,
                             struct event_set *set)
{
    ENTER_GPU(device);
    if (kinds != XID_EVENT)
        return NOT_SUPPORTED;
    set->registered[device - devices] = 1;
    set->seen[device - devices] = gpu->xid_count;
    return SUCCESS;
}

/* A lost GPU ends the wait for all of the set, and the answer does not say which one it is. */
static int next_event(struct driver *driver, struct event_set *set, struct event *event)
{
    int lost = 0;
    for (int i = 0; i < DEVICES_MAX; i++) {
        const struct gpu *gpu = set->registered[i] ? gpu_of(driver, &devices[i]) : NULL;
        const struct answer *answer = gpu != NULL ? answer_for(&gpu->answers, "*") : NULL;
        if (set->registered[i] && (gpu == NULL || (answer != NULL && answer->code == GPU_IS_LOST)))
            lost = 1;
        if (gpu == NULL || set->seen[i] >= gpu->xid_count)
            continue;
        *event = (struct event){&devices[i], XID_EVENT, gpu->xids[set->seen[i]++], NO_INSTANCE,
                                NO_INSTANCE};
        return SUCCESS;
    }
    return lost ? GPU_IS_LOST : TIMED_OUT;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *event, unsigned int milliseconds)
{
    ENTER;
    code = next_event(&driver, set, event);
    if (code == TIMED_OUT)
        wait_milliseconds(milliseconds);
    return code;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned int *count,
                                            struct process_info *infos)
{
    ENTER_GPU(device);
    return list(&driver, gpu, 0, count, infos);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *device, unsigned int *count,
                                             struct process_info *infos)
{
    ENTER_GPU(device);
    return list(&driver, gpu, 1, count, infos);
}
#endif
