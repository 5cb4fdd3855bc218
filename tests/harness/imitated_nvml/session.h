/* One process's session with the imitated driver, and the handles that it has of GPUs. */

#ifndef GPUJOB_IMITATED_SESSION_H
#define GPUJOB_IMITATED_SESSION_H

#include "driver.h"

#define DEVICES_MAX 64

struct device { char uuid[TEXT_MAX]; };
extern struct device devices[DEVICES_MAX];

void wait_milliseconds(unsigned int milliseconds);
struct device *handle_of(const char *uuid);
struct gpu *gpu_of(struct driver *driver, const struct device *device);

/* Forgets the event sets of the session that ended. */
void free_event_sets(void);

/* Waits while the script lets the function hang. The answer that it scripts, else SUCCESS. */
int scripted(struct driver *driver, const struct device *device, const char *function);

/* The same, and an error without a session with the driver that is loaded now. */
int enter(struct driver *driver, const char *function);
int enter_gpu(struct driver *driver, const struct device *device, const char *function,
              struct gpu **gpu);

#define ENTER \
    struct driver driver; \
    int code = enter(&driver, __func__); \
    if (code != SUCCESS) \
        return code

#define ENTER_GPU(device) \
    struct driver driver; \
    struct gpu *gpu = NULL; \
    int code = enter_gpu(&driver, device, __func__, &gpu); \
    if (code != SUCCESS) \
        return code

#endif
