/* The grant: what one container or program was promised, as the node wrote it and the limiter reads it.
 *
 * A grant lives in a directory of its own, GRANT_DIR:
 *   GRANT_DIR/grant      this struct; written by the node, mapped read-only by every process of the tenant.
 *                        The node changes a limit in place, so a mapped reader sees it at once.
 *   GRANT_DIR/usage      the region (region.h); read-write for the tenant, holds usage and nothing else.
 *   GRANT_DIR/board.<i>  the directory that all tenants of device i read (timeshare/pages.h); read-only for them.
 *   GRANT_DIR/page.<i>   the grant's own state on device i; read-write for the tenant.
 *
 * The limiter looks for the grant at /etc/hetero/grant (a container's read-only mount), which no environment can
 * override, then at $HETERO_GRANT (the path of the grant file; `hetero run`). Neither: not limited, pass through.
 * One that is there but cannot be understood: every allocation and launch is refused (fail closed).
 *
 * Fixed layout, little-endian, no pointers. The Python writer is hetero/node/ledger/grant_file.py; tests/limiters
 * checks that both sides agree byte by byte.
 */
#ifndef HETERO_GRANT_H
#define HETERO_GRANT_H

#include <stdint.h>

#define HETERO_GRANT_MAGIC   UINT64_C(0x31544e4152475448) /* "HTGRANT1" read as a little-endian integer */
#define HETERO_GRANT_VERSION 1u
#define HETERO_MAX_DEVICES   16u
#define HETERO_CORE_FULL     10000u /* core is in hundredths of a percent: 30 % is 3000; 10000 = no core limit */

enum hetero_policy { HETERO_POLICY_FIXED = 0, HETERO_POLICY_ELASTIC = 1, HETERO_POLICY_OFF = 2 };
enum hetero_priority { HETERO_PRIORITY_LOW = 0, HETERO_PRIORITY_HIGH = 1 };

/* Set for all processes of a grant. */
enum {
    HETERO_FLAG_SPILL = 1,   /* the node grants more memory than the card has: what does not fit is host memory */
    HETERO_FLAG_CONTEXT = 2, /* all that the driver counts for a process is charged: contexts and code, too */
    HETERO_FLAG_STRICT = 4,  /* driver functions that the limiter does not know are hidden */
    HETERO_FLAG_SERVICE = 8, /* a service of the vendor's (MPS) runs kernels of several programs at the same time */
    HETERO_FLAGS = HETERO_FLAG_SPILL | HETERO_FLAG_CONTEXT | HETERO_FLAG_STRICT | HETERO_FLAG_SERVICE,
};

struct hetero_grant_device {
    char uuid[64];         /* as the driver prints it ("GPU-…"), NUL-padded: the only way a device is addressed */
    uint64_t memory_bytes; /* the limit of this grant on the device */
    uint32_t core;         /* the share of device time in hundredths of a percent, 1..10000 */
    uint32_t policy;       /* enum hetero_policy */
    uint32_t priority;     /* enum hetero_priority */
    uint32_t flags;        /* HETERO_FLAG_* */
    /* Bytes that the driver counts for the grant's programs and their limiters did not charge. They count as held. Root
     * writes it after it compared the two (hetero/node/view/excess.py). */
    uint64_t excess_bytes;
    /* CLOCK_MONOTONIC until which the grant pays what earlier ones of its user owed here, while others want the device:
     * its gate is closed. 0: nothing. Root writes it (hetero/node/ledger/debts.py). */
    uint64_t owes_until_ns;
    /* What a context takes on the device, as the node measured it. With HETERO_FLAG_CONTEXT it is charged before each
     * context is made. 0: not known, and charged after. */
    uint64_t context_bytes;
    uint64_t reserved[2];
}; /* 128 bytes */

struct hetero_grant {
    uint64_t magic;
    uint32_t version;
    uint32_t device_count; /* 1..HETERO_MAX_DEVICES */
    char id[48];           /* the grant's id, NUL-padded: for logs */
    struct hetero_grant_device devices[HETERO_MAX_DEVICES];
}; /* 64 + 16 * 128 = 2112 bytes */

_Static_assert(sizeof(struct hetero_grant_device) == 128, "grant device layout");
_Static_assert(sizeof(struct hetero_grant) == 2112, "grant layout");

#endif
