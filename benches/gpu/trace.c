/* Writes a line for every kernel, copy and fill of a CUDA process: start and end in nanoseconds since 1970, and its name.
 *
 *   CUDA_INJECTION64_PATH=./trace.so MCPRL_TRACE=trace.tsv mcprl-bench --device cuda:0
 *
 * The driver loads the library when it is initialised. Records come from CUPTI's activity interface. */
#include <cupti.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFER (8 << 20)

static FILE *out;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void CUPTIAPI requested(uint8_t **buffer, size_t *size, size_t *most) {
    *buffer = aligned_alloc(8, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *most = 0;
}

static void line(uint64_t start, uint64_t end, const char *name) {
    fprintf(out, "%llu\t%llu\t%s\n", (unsigned long long)start, (unsigned long long)end, name);
}

static void CUPTIAPI completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    static const char *const copies[] = {"copy", "copy host to device", "copy device to host"};
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)size;
    pthread_mutex_lock(&lock);
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel10 *kernel = (const void *)record;
            line(kernel->start, kernel->end, kernel->name);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy6 *copy = (const void *)record;
            line(copy->start, copy->end, copies[copy->copyKind <= CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? copy->copyKind : 0]);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const CUpti_ActivityMemset4 *fill = (const void *)record;
            line(fill->start, fill->end, "fill");
        }
    }
    pthread_mutex_unlock(&lock);
    free(buffer);
}

static void finish(void) {
    cuptiActivityFlushAll(1);
    fflush(out);
}

static int wrong(const char *what, CUptiResult result) {
    const char *text = "unknown";
    cuptiGetResultString(result, &text);
    fprintf(stderr, "trace: %s: %s\n", what, text);
    return 0;
}

int InitializeInjection(void) {
    static const CUpti_ActivityKind kinds[] = {
        CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
        CUPTI_ACTIVITY_KIND_MEMCPY,
        CUPTI_ACTIVITY_KIND_MEMSET,
    };
    const char *path = getenv("MCPRL_TRACE");
    CUptiResult result;
    if (!path || out)
        return 1;
    if (!(out = fopen(path, "w"))) {
        perror(path);
        return 0;
    }
    if ((result = cuptiActivityRegisterCallbacks(requested, completed)) != CUPTI_SUCCESS)
        return wrong("callbacks", result);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((result = cuptiActivityEnable(kinds[i])) != CUPTI_SUCCESS)
            return wrong("activity", result);
    atexit(finish);
    return 1;
}
