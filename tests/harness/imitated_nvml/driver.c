/* Reads the script of the imitated driver: one fact a line, a GPU's facts after its "gpu" line. */

#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct gpu NEW_GPU = {
    .utilization = UNTOLD, .memory_utilization = UNTOLD, .power = UNTOLD, .energy = UNTOLD,
    .temperature = UNTOLD, .ecc = UNTOLD, .throttle = UNTOLD, .remapped = {UNTOLD, 0, 0, 0},
    .mig = UNTOLD, .numa = UNTOLD, .compute_mode = UNTOLD,
};

static void die(const char *line)
{
    fprintf(stderr, "imitated NVML: cannot read the line: %s", line);
    abort();
}

static void read_answer(struct answers *answers, const char *line, int hangs)
{
    struct answer *answer = &answers->items[answers->count];
    if (answers->count == ANSWERS_MAX || sscanf(line, "%*s %95s %d", answer->function,
                                                &answer->code) != (hangs ? 1 : 2))
        die(line);
    answer->hangs = hangs;
    answers->count++;
}

static void read_process(struct gpu *gpu, const char *line)
{
    struct process *process = &gpu->processes[gpu->process_count];
    char kind[TEXT_MAX], memory[TEXT_MAX];
    if (gpu->process_count == ITEMS_MAX ||
        sscanf(line, "%*s %95s %u %95s", kind, &process->pid, memory) != 3)
        die(line);
    process->graphics = strcmp(kind, "graphics") == 0;
    process->memory = strcmp(memory, "na") == 0 ? NOT_AVAILABLE : strtoull(memory, NULL, 10);
    gpu->process_count++;
}

static void read_sample(struct gpu *gpu, const char *line)
{
    struct sample *sample = &gpu->samples[gpu->sample_count];
    if (gpu->sample_count == ITEMS_MAX ||
        sscanf(line, "%*s %u %llu %u", &sample->pid, &sample->time, &sample->busy) != 3)
        die(line);
    gpu->sample_count++;
}

static int read_lists(struct gpu *gpu, const char *key, const char *line)
{
    if (strcmp(key, "process") == 0)
        read_process(gpu, line);
    else if (strcmp(key, "sample") == 0)
        read_sample(gpu, line);
    else if (strcmp(key, "xid") == 0 && gpu->xid_count < ITEMS_MAX)
        gpu->xids[gpu->xid_count++] = strtoull(line + 4, NULL, 10);
    else if (strcmp(key, "nvlink") == 0 && gpu->link_count < GPUS_MAX)
        gpu->links[gpu->link_count++] = atoi(line + 7);
    else if (strcmp(key, "answer") == 0)
        read_answer(&gpu->answers, line, 0);
    else if (strcmp(key, "hang") == 0)
        read_answer(&gpu->answers, line, 1);
    else
        return 0;
    return 1;
}

static void read_figures(struct gpu *gpu, const char *key, const char *line)
{
    const struct { const char *key; long long *into[4]; int count; } figures[] = {
        {"memory", {&gpu->total, &gpu->reserved, &gpu->used}, 3},
        {"utilization", {&gpu->utilization, &gpu->memory_utilization}, 2},
        {"power", {&gpu->power}, 1},
        {"energy", {&gpu->energy}, 1},
        {"temperature", {&gpu->temperature}, 1},
        {"ecc", {&gpu->ecc}, 1},
        {"throttle", {&gpu->throttle}, 1},
        {"remapped", {&gpu->remapped[0], &gpu->remapped[1], &gpu->remapped[2], &gpu->remapped[3]}, 4},
        {"mig", {&gpu->mig, &gpu->mig_pending, &gpu->mig_instances}, 3},
        {"numa", {&gpu->numa}, 1},
        {"compute", {&gpu->compute_mode}, 1},
    };
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        if (strcmp(key, figures[i].key) != 0)
            continue;
        const char *rest = strchr(line, ' ');
        for (int n = 0; n < figures[i].count; n++) {
            char *end = NULL;
            if (rest == NULL)
                die(line);
            *figures[i].into[n] = strtoll(rest, &end, 10);
            if (end == rest)
                die(line);
            rest = end;
        }
        return;
    }
    die(line);
}

static void read_line(struct driver *driver, const char *line)
{
    char key[TEXT_MAX] = "";
    struct gpu *gpu = driver->gpu_count > 0 ? &driver->gpus[driver->gpu_count - 1] : NULL;
    if (sscanf(line, "%95s", key) != 1)
        return;
    if (strcmp(key, "gpu") == 0 && driver->gpu_count < GPUS_MAX) {
        gpu = &driver->gpus[driver->gpu_count++];
        *gpu = NEW_GPU;
        if (sscanf(line, "%*s %95s", gpu->uuid) != 1)
            die(line);
    } else if (gpu == NULL && strcmp(key, "version") == 0) {
        sscanf(line, "%*s %95s", driver->version);
    } else if (gpu == NULL && strcmp(key, "loaded") == 0) {
        driver->loaded = atoll(line + 7);
    } else if (gpu == NULL && strcmp(key, "crowded") == 0) {
        driver->crowded = atoi(line + 8);
    } else if (gpu == NULL && strcmp(key, "cuda") == 0) {
        driver->cuda = atoi(line + 5);
    } else if (gpu == NULL && strcmp(key, "answer") == 0) {
        read_answer(&driver->answers, line, 0);
    } else if (gpu == NULL && strcmp(key, "hang") == 0) {
        read_answer(&driver->answers, line, 1);
    } else if (gpu == NULL) {
        die(line);
    } else if (strcmp(key, "name") == 0) {
        sscanf(line, "%*s %95[^\n]", gpu->name);
    } else if (!read_lists(gpu, key, line)) {
        read_figures(gpu, key, line);
    }
}

/* Processes with a clean environment find the script beside the library. */
#ifndef DEFAULT_SCRIPT
#define DEFAULT_SCRIPT NULL
#endif

int read_driver(struct driver *driver)
{
    const char *named = getenv("GPUJOB_IMITATED_NVML");
    const char *path = named != NULL ? named : DEFAULT_SCRIPT;
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    char line[4 * TEXT_MAX];
    memset(driver, 0, sizeof *driver);
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL)
        read_line(driver, line);
    fclose(file);
    return 1;
}

const struct answer *answer_for(const struct answers *answers, const char *function)
{
    for (int i = 0; i < answers->count; i++)
        if (strcmp(answers->items[i].function, function) == 0 ||
            strcmp(answers->items[i].function, "*") == 0)
            return &answers->items[i];
    return NULL;
}
