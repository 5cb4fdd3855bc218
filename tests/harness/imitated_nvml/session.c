/* Sessions: begun by nvmlInitWithFlags, counted, and ended by the last nvmlShutdown. */

#include "session.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define STALE_SESSION 999

struct device devices[DEVICES_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int references;
static long long session;

void wait_milliseconds(unsigned int milliseconds)
{
    struct timespec time = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    nanosleep(&time, NULL);
}

struct gpu *gpu_of(struct driver *driver, const struct device *device)
{
    for (int i = 0; i < driver->gpu_count; i++)
        if (strcmp(driver->gpus[i].uuid, device->uuid) == 0)
            return &driver->gpus[i];
    return NULL;
}

struct device *handle_of(const char *uuid)
{
    struct device *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < DEVICES_MAX && found == NULL; i++) {
        if (devices[i].uuid[0] == 0)
            snprintf(devices[i].uuid, TEXT_MAX, "%s", uuid);
        if (strcmp(devices[i].uuid, uuid) == 0)
            found = &devices[i];
    }
    pthread_mutex_unlock(&lock);
    return found;
}

int scripted(struct driver *driver, const struct device *device, const char *function)
{
    for (;; wait_milliseconds(5)) {
        if (!read_driver(driver))
            return DRIVER_NOT_LOADED;
        const struct gpu *gpu = device != NULL ? gpu_of(driver, device) : NULL;
        const struct answer *answer = gpu != NULL ? answer_for(&gpu->answers, function) : NULL;
        if (answer == NULL)
            answer = answer_for(&driver->answers, function);
        if (answer == NULL)
            return SUCCESS;
        if (!answer->hangs)
            return answer->code;
    }
}

int enter(struct driver *driver, const char *function)
{
    int code = references == 0 ? UNINITIALIZED : scripted(driver, NULL, function);
    if (code == SUCCESS && driver->loaded != session)
        return STALE_SESSION;
    return code;
}

int enter_gpu(struct driver *driver, const struct device *device, const char *function,
              struct gpu **gpu)
{
    int code = enter(driver, function);
    if (code != SUCCESS)
        return code;
    code = scripted(driver, device, function);
    if (code != SUCCESS)
        return code;
    *gpu = gpu_of(driver, device);
    return *gpu == NULL ? GPU_IS_LOST : SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags)
{
    struct driver driver;
    int code = scripted(&driver, NULL, __func__);
    (void)flags;
    if (code == SUCCESS && references++ == 0)
        session = driver.loaded;
    return code;
}

int nvmlShutdown(void)
{
    if (references == 0)
        return UNINITIALIZED;
    if (--references == 0)
        free_event_sets();
    return SUCCESS;
}
