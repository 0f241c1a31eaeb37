/* Callbacks of the acl layer: the program's own thread runs them, when it asks for what was reported. */
#include "ascend_acl.h"

#include <stdlib.h>
#include <time.h>

static struct report {
    void (*function)(void *);
    void *argument;
    bool is_blocking, is_done; /* is_blocking: the stream waits until it is done, and frees it */
    struct report *next;
} *reports, **last = &reports; /* under the lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

EXPORT aclError aclrtSubscribeReport(uint64_t thread UNUSED, aclrtStream stream UNUSED)
{
    return ACL_SUCCESS;
}

EXPORT aclError aclrtUnSubscribeReport(uint64_t thread UNUSED, aclrtStream stream UNUSED)
{
    return ACL_SUCCESS;
}

/* A stream has reached the callback. */
static void tell(void *argument)
{
    struct report *report = argument;
    pthread_mutex_lock(&lock);
    *last = report;
    last = &report->next;
    pthread_cond_broadcast(&changed);
    bool is_blocking = report->is_blocking;
    while (is_blocking && !report->is_done)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (is_blocking)
        free(report);
}

EXPORT aclError aclrtLaunchCallback(void (*function)(void *), void *argument, int is_blocking, aclrtStream stream)
{
    if (!function)
        return ACL_ERROR_INVALID_PARAM;
    struct report *report = calloc(1, sizeof *report);
    *report = (struct report){.function = function, .argument = argument, .is_blocking = is_blocking};
    aclError error = fake_rt_call(stream, tell, report);
    if (error)
        free(report);
    return error;
}

EXPORT aclError aclrtProcessReport(int32_t timeout_ms)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += timeout_ms / 1000 + (end.tv_nsec + timeout_ms % 1000 * 1000000L) / 1000000000L;
    end.tv_nsec = (end.tv_nsec + timeout_ms % 1000 * 1000000L) % 1000000000L;
    pthread_mutex_lock(&lock);
    int waited = 0;
    while (!reports && !waited)
        waited = timeout_ms < 0 ? pthread_cond_wait(&changed, &lock) : pthread_cond_timedwait(&changed, &lock, &end);
    struct report *report = reports;
    if (report && !(reports = report->next))
        last = &reports;
    pthread_mutex_unlock(&lock);
    if (!report)
        return ACL_ERROR_WAIT_CALLBACK_TIMEOUT;
    report->function(report->argument);
    pthread_mutex_lock(&lock);
    bool is_blocking = report->is_blocking;
    report->is_done = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (!is_blocking)
        free(report);
    return ACL_SUCCESS;
}
