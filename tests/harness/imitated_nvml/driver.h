/* What the imitated driver says now: read anew from the file of a test at every call. */

#ifndef GPUJOB_IMITATED_DRIVER_H
#define GPUJOB_IMITATED_DRIVER_H

#define GPUS_MAX 16
#define ITEMS_MAX 128
#define ANSWERS_MAX 32
#define TEXT_MAX 96

/* A figure that the file does not name: the GPU cannot tell it. */
#define UNTOLD (-1LL)
/* What NVML writes in the place of a process's memory that it does not know. */
#define NOT_AVAILABLE (~0ULL)

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMED_OUT = 10, GPU_IS_LOST = 15,
       ARGUMENT_VERSION_MISMATCH = 25 };

/* `code` is what a function answers; `hangs`: it does not answer while the file says so. */
struct answer {
    char function[TEXT_MAX];
    int code;
    int hangs;
};

struct answers {
    int count;
    struct answer items[ANSWERS_MAX];
};

struct process {
    int graphics;
    unsigned int pid;
    unsigned long long memory;
};

struct sample {
    unsigned int pid;
    unsigned long long time;
    unsigned int busy;
};

struct gpu {
    char uuid[TEXT_MAX];
    char name[TEXT_MAX];
    long long total, reserved, used;
    long long utilization, memory_utilization, power, energy, temperature, ecc, throttle;
    long long remapped[4];
    long long mig, mig_pending, mig_instances, numa, compute_mode;
    int process_count, sample_count, xid_count, link_count;
    struct process processes[ITEMS_MAX];
    struct sample samples[ITEMS_MAX];
    unsigned long long xids[ITEMS_MAX];
    int links[GPUS_MAX];
    struct answers answers;
};

struct driver {
    char version[TEXT_MAX];
    /* Counts how often the driver was loaded: a session of an earlier one is dead. */
    long long loaded;
    /* How many sized calls are answered with "insufficient size" first. */
    int crowded;
    /* As NVML writes it: 13020 is CUDA 13.2. 0: the driver cannot tell. */
    int cuda;
    int gpu_count;
    struct gpu gpus[GPUS_MAX];
    struct answers answers;
};

/* Reads the file that GPUJOB_IMITATED_NVML names. 0 if there is none: no driver is loaded. */
int read_driver(struct driver *driver);

/* The scripted answer for the function, or for "*"; null if there is none. */
const struct answer *answer_for(const struct answers *answers, const char *function);

#endif
