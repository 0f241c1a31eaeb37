/* Finds and checks the grant, once per process. Anything wrong with one that is there refuses; none is free. */
#include "tenant.h"

#include "fault.h"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANT_OF_CONTAINER "/etc/hetero/grant"

struct process process; /* all zero: the mutex is one that nobody holds */

/* All of this is written under `looking` and stays in children: what was found, the grant, and what the child forgets.
 */
enum { FORGETS = 4 };
static enum tenancy kept = TENANCY_UNKNOWN;
const struct hetero_grant *tenant_grant;
static char directory[PATH_MAX];
static uint8_t uuids[HETERO_MAX_DEVICES][16];
static void (*forgets[FORGETS])(void);

/* The region: `opened` is published after the struct is complete; under `looking` until then. */
static struct region region;
static _Atomic(struct region *) opened;

static bool terminated(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

/* "XXX-5e9f0a1b-…": the driver's 16 bytes are the 32 hexadecimal digits after the first dash, or all where nothing is
 * in front of them: the first eight are then in front of the first dash. AMD's cards have 16. */
static bool parse_uuid(const char *text, uint8_t bytes[16])
{
    const char *at = strchr(text, '-');
    unsigned digits = 0;
    if (at != NULL && at - text == 8)
        at = text;
    memset(bytes, 0, 16);
    for (; at != NULL && *at != '\0'; at++) {
        if (*at == '-')
            continue;
        unsigned digit;
        if (*at >= '0' && *at <= '9')
            digit = (unsigned)(*at - '0');
        else if ((*at | 0x20) >= 'a' && (*at | 0x20) <= 'f')
            digit = (unsigned)((*at | 0x20) - 'a') + 10;
        else
            return false;
        if (digits == 32)
            return false;
        bytes[digits / 2] = (uint8_t)(digits % 2 ? bytes[digits / 2] | digit : digit << 4);
        digits++;
    }
    return digits == 32 || digits == 16;
}

const char *grant_fault(const struct hetero_grant *candidate, uint8_t found[HETERO_MAX_DEVICES][16])
{
    if (candidate->magic != HETERO_GRANT_MAGIC)
        return "not a grant";
    if (candidate->version != HETERO_GRANT_VERSION)
        return "a version this limiter does not know";
    if (candidate->device_count < 1 || candidate->device_count > HETERO_MAX_DEVICES)
        return "an impossible number of devices";
    if (!terminated(candidate->id, sizeof candidate->id))
        return "an id without an end";
    for (unsigned d = 0; d < candidate->device_count; d++) {
        const struct hetero_grant_device *terms = &candidate->devices[d];
        if (!terminated(terms->uuid, sizeof terms->uuid) || !parse_uuid(terms->uuid, found[d]))
            return "a device without a proper UUID";
        if (terms_core(terms) < 1 || terms_core(terms) > HETERO_CORE_FULL)
            return "a core share outside 0.01 % to 100 %";
        if (terms_policy(terms) > HETERO_POLICY_OFF || terms_priority(terms) > HETERO_PRIORITY_HIGH)
            return "an unknown policy or priority";
        if (terms_flags(terms) & ~(uint32_t)HETERO_FLAGS)
            return "a flag this limiter does not know";
    }
    return NULL;
}

/* Whether nothing that this grant names is held to anything: it is then as if there were none. */
static bool switched_off(const struct hetero_grant *found)
{
    for (unsigned d = 0; d < found->device_count; d++)
        if (terms_policy(&found->devices[d]) != HETERO_POLICY_OFF)
            return false;
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ forks */

void tenancy_in_child(void (*forget)(void))
{
    unsigned at = 0;
    pthread_mutex_lock(&process.looking);
    while (at < FORGETS && forgets[at] != NULL && forgets[at] != forget)
        at++;
    if (at < FORGETS)
        forgets[at] = forget;
    pthread_mutex_unlock(&process.looking);
}

/* At a fork that libc knows of: at once, so that what is inherited does not stay the parent's for longer; and whole, on
 * kernels before 4.14 too. */
static void after_fork_in_child(void)
{
    memset((void *)&process, 0, sizeof process);
    tenancy_look();
}

static void watch_forks(void)
{
    bool wiped = !FAULT(forks_unnoticed) && madvise(&process, sizeof process, MADV_WIPEONFORK) == 0;
    if (pthread_atfork(NULL, NULL, after_fork_in_child) != 0 || !wiped)
        log_line(LOG_INFO, "a fork past libc is not noticed: this kernel wipes no pages");
}

/* With `looking` held, in a child: it takes its own place in the region when it first needs one. */
static void forget_parent(void)
{
    if (atomic_load_explicit(&opened, memory_order_relaxed) != NULL)
        region_forget(&region);
    for (unsigned at = 0; at < FORGETS && forgets[at] != NULL; at++)
        forgets[at]();
}

/* -------------------------------------------------------------------------------------------------------- the grant */

/* A notice, since nothing else tells the program's user why the driver answers nothing. */
static enum tenancy refuse(const char *path, const char *fault)
{
    log_line(LOG_NOTICE, "grant %s: %s: everything is refused; start the container, or the command, anew", path, fault);
    return TENANCY_REFUSED;
}

static enum tenancy open_grant(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return refuse(path, strerror(errno));
    void *mapped = MAP_FAILED;
    if (lseek(file, 0, SEEK_END) >= (off_t)sizeof(struct hetero_grant))
        mapped = mmap(NULL, sizeof(struct hetero_grant), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    const char *fault = mapped == MAP_FAILED ? "too short, or no file" : grant_fault(mapped, uuids);
    const char *slash = strrchr(path, '/');
    int length = slash == NULL ? 0 : (int)(slash - path);
    if (fault == NULL && (*path != '/' || length >= (int)sizeof directory))
        fault = "its path is not absolute, or too long"; /* the other files are opened later, from anywhere */
    if (fault != NULL)
        return refuse(path, fault);
    if (switched_off(mapped)) {
        munmap(mapped, sizeof(struct hetero_grant));
        return TENANCY_FREE;
    }
    memcpy(directory, path, (size_t)length);
    tenant_grant = mapped;
    watch_forks();
    log_line(LOG_INFO, "grant %s: %u device(s)", tenant_grant->id, tenant_grant->device_count);
    return TENANCY_HELD;
}

static enum tenancy find_grant(void)
{
    const char *named = getenv("HETERO_GRANT");
    if (access(GRANT_OF_CONTAINER, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR))
        return open_grant(GRANT_OF_CONTAINER);
    return named == NULL || *named == '\0' ? TENANCY_FREE : open_grant(named);
}

enum tenancy tenancy_look(void)
{
    pthread_mutex_lock(&process.looking);
    if (atomic_load_explicit(&process.tenancy, memory_order_relaxed) == TENANCY_UNKNOWN) {
        if (kept == TENANCY_UNKNOWN)
            kept = find_grant();
        else
            forget_parent();
        atomic_store_explicit(&process.tenancy, (int)kept, memory_order_release);
    }
    pthread_mutex_unlock(&process.looking);
    return kept;
}

int tenant_device(const uint8_t uuid[16])
{
    for (unsigned d = 0; d < tenant_grant->device_count; d++)
        if (memcmp(uuids[d], uuid, 16) == 0)
            return (int)d;
    return DEVICE_FOREIGN;
}

int tenant_device_named(const char *uuid)
{
    uint8_t bytes[16];
    return parse_uuid(uuid, bytes) ? tenant_device(bytes) : DEVICE_FOREIGN;
}

const char *tenant_directory(void)
{
    return directory;
}

struct region *tenant_region(void)
{
    struct region *ready = atomic_load_explicit(&opened, memory_order_acquire);
    if (ready != NULL || tenancy() != TENANCY_HELD)
        return ready;
    pthread_mutex_lock(&process.looking);
    ready = atomic_load_explicit(&opened, memory_order_relaxed);
    char path[PATH_MAX + 8];
    strcpy(path, directory);
    strcat(path, "/usage");
    if (ready == NULL && region_open(&region, path)) {
        region.grant = tenant_grant;
        ready = &region;
        atomic_store_explicit(&opened, ready, memory_order_release);
    }
    pthread_mutex_unlock(&process.looking);
    return ready;
}
