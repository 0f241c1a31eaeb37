/* Finds and checks the grant, once per process. Without a grant nothing is limited; with a wrong one all is refused. */
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

struct process process; /* all zero, which is an unlocked mutex, too */

/* Written under `tenancy_mutex`. Children keep it: the result of the search, the grant, and the handlers for children.
 */
enum { CHILD_HANDLERS = 4 };
static enum tenancy process_tenancy = TENANCY_UNKNOWN;
const struct hetero_grant *tenant_grant;
static char grant_directory[PATH_MAX];
static uint8_t device_uuids[HETERO_MAX_DEVICES][16];
static void (*child_handlers[CHILD_HANDLERS])(void);

/* The region. `opened_region` is published when the struct is complete; until then `tenancy_mutex` guards it. */
static struct region process_region;
static _Atomic(struct region *) opened_region;

static bool is_terminated(const char *text, size_t size_bytes)
{
    return memchr(text, '\0', size_bytes) != NULL;
}

/* "XXX-5e9f0a1b-…": the driver's 16 bytes are the 32 hexadecimal digits after the first dash. Without a prefix, as in
 * "5e9f0a1b-…", they are all digits. AMD's cards have 16 digits. */
static bool parse_uuid(const char *text, uint8_t bytes[16])
{
    const char *cursor = strchr(text, '-');
    unsigned digit_count = 0;
    if (cursor != NULL && cursor - text == 8)
        cursor = text;
    memset(bytes, 0, 16);
    for (; cursor != NULL && *cursor != '\0'; cursor++) {
        if (*cursor == '-')
            continue;
        unsigned digit;
        if (*cursor >= '0' && *cursor <= '9')
            digit = (unsigned)(*cursor - '0');
        else if ((*cursor | 0x20) >= 'a' && (*cursor | 0x20) <= 'f')
            digit = (unsigned)((*cursor | 0x20) - 'a') + 10;
        else
            return false;
        if (digit_count == 32)
            return false;
        bytes[digit_count / 2] = (uint8_t)(digit_count % 2 ? bytes[digit_count / 2] | digit : digit << 4);
        digit_count++;
    }
    return digit_count == 32 || digit_count == 16;
}

const char *grant_problem(const struct hetero_grant *candidate, uint8_t uuids[HETERO_MAX_DEVICES][16])
{
    if (candidate->magic != HETERO_GRANT_MAGIC)
        return "not a grant";
    if (candidate->version != HETERO_GRANT_VERSION)
        return "a version this limiter does not know";
    if (candidate->device_count < 1 || candidate->device_count > HETERO_MAX_DEVICES)
        return "an impossible number of devices";
    if (!is_terminated(candidate->id, sizeof candidate->id))
        return "an id without an end";
    for (unsigned device = 0; device < candidate->device_count; device++) {
        const struct hetero_grant_device *terms = &candidate->devices[device];
        if (!is_terminated(terms->uuid, sizeof terms->uuid) || !parse_uuid(terms->uuid, uuids[device]))
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

/* Whether the policy of all devices is off. The grant then limits nothing. */
static bool switched_off(const struct hetero_grant *grant)
{
    for (unsigned device = 0; device < grant->device_count; device++)
        if (terms_policy(&grant->devices[device]) != HETERO_POLICY_OFF)
            return false;
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ forks */

void tenancy_in_child(void (*handler)(void))
{
    unsigned index = 0;
    pthread_mutex_lock(&process.tenancy_mutex);
    while (index < CHILD_HANDLERS && child_handlers[index] != NULL && child_handlers[index] != handler)
        index++;
    if (index < CHILD_HANDLERS)
        child_handlers[index] = handler;
    pthread_mutex_unlock(&process.tenancy_mutex);
}

/* After a fork by libc. Clearing `process` here works on kernels before 4.14, too, which wipe no pages. */
static void after_fork_in_child(void)
{
    memset((void *)&process, 0, sizeof process);
    tenancy_look();
}

static void watch_forks(void)
{
    bool is_wiped = !FAULT(forks_unnoticed) && madvise(&process, sizeof process, MADV_WIPEONFORK) == 0;
    if (pthread_atfork(NULL, NULL, after_fork_in_child) != 0 || !is_wiped)
        log_line(LOG_INFO, "a fork past libc is not noticed: this kernel wipes no pages");
}

/* With `tenancy_mutex` held, in a child: forget the parent's state. The child takes a slot of its own when it needs
 * one.
 */
static void run_child_handlers(void)
{
    if (atomic_load_explicit(&opened_region, memory_order_relaxed) != NULL)
        region_forget(&process_region);
    for (unsigned index = 0; index < CHILD_HANDLERS && child_handlers[index] != NULL; index++)
        child_handlers[index]();
}

/* -------------------------------------------------------------------------------------------------------- the grant */

/* A notice, since otherwise the program's user does not learn why all driver calls fail. */
static enum tenancy refuse_until(const char *path, const char *problem, const char *remedy)
{
    log_line(LOG_NOTICE, "grant %s: %s: everything is refused; %s", path, problem, remedy);
    return TENANCY_REFUSED;
}

static enum tenancy refuse(const char *path, const char *problem)
{
    return refuse_until(path, problem, "start the container, or the command, anew");
}

static enum tenancy open_grant(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES)
        return refuse_until(path, strerror(errno), "it is another user's: have root start it by hetero run --for-user");
    if (fd < 0)
        return refuse(path, strerror(errno));
    void *mapping = MAP_FAILED;
    if (lseek(fd, 0, SEEK_END) >= (off_t)sizeof(struct hetero_grant))
        mapping = mmap(NULL, sizeof(struct hetero_grant), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    const char *problem = mapping == MAP_FAILED ? "too short, or no file" : grant_problem(mapping, device_uuids);
    const char *last_slash = strrchr(path, '/');
    int directory_length = last_slash == NULL ? 0 : (int)(last_slash - path);
    if (problem == NULL && (*path != '/' || directory_length >= (int)sizeof grant_directory))
        problem = "its path is not absolute, or too long"; /* the working directory may change before the next open */
    if (problem != NULL)
        return refuse(path, problem);
    if (switched_off(mapping)) {
        munmap(mapping, sizeof(struct hetero_grant));
        return TENANCY_FREE;
    }
    memcpy(grant_directory, path, (size_t)directory_length);
    tenant_grant = mapping;
    watch_forks();
    log_line(LOG_INFO, "grant %s: %u device(s)", tenant_grant->id, tenant_grant->device_count);
    return TENANCY_HELD;
}

static enum tenancy find_grant(void)
{
    const char *environment_path = getenv("HETERO_GRANT");
    if (access(GRANT_OF_CONTAINER, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR))
        return open_grant(GRANT_OF_CONTAINER);
    return environment_path == NULL || *environment_path == '\0' ? TENANCY_FREE : open_grant(environment_path);
}

enum tenancy tenancy_look(void)
{
    pthread_mutex_lock(&process.tenancy_mutex);
    if (atomic_load_explicit(&process.tenancy, memory_order_relaxed) == TENANCY_UNKNOWN) {
        if (process_tenancy == TENANCY_UNKNOWN)
            process_tenancy = find_grant();
        else
            run_child_handlers();
        atomic_store_explicit(&process.tenancy, (int)process_tenancy, memory_order_release);
    }
    pthread_mutex_unlock(&process.tenancy_mutex);
    return process_tenancy;
}

int tenant_device(const uint8_t uuid[16])
{
    for (unsigned device = 0; device < tenant_grant->device_count; device++)
        if (memcmp(device_uuids[device], uuid, 16) == 0)
            return (int)device;
    return DEVICE_FOREIGN;
}

int tenant_device_named(const char *uuid)
{
    uint8_t bytes[16];
    return parse_uuid(uuid, bytes) ? tenant_device(bytes) : DEVICE_FOREIGN;
}

const char *tenant_directory(void)
{
    return grant_directory;
}

struct region *tenant_region(void)
{
    struct region *region = atomic_load_explicit(&opened_region, memory_order_acquire);
    if (region != NULL || tenancy() != TENANCY_HELD)
        return region;
    pthread_mutex_lock(&process.tenancy_mutex);
    region = atomic_load_explicit(&opened_region, memory_order_relaxed);
    char path[PATH_MAX + 8];
    strcpy(path, grant_directory);
    strcat(path, "/usage");
    if (region == NULL && region_open(&process_region, path)) {
        process_region.grant = tenant_grant;
        region = &process_region;
        atomic_store_explicit(&opened_region, region, memory_order_release);
    }
    pthread_mutex_unlock(&process.tenancy_mutex);
    return region;
}
