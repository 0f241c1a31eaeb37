/* Charges textures and surfaces (views of memory). The driver keeps 42 and 63 bytes for each on the card, which no call
 * tells (measured on an NVIDIA H100, driver 580.159.04, with 100,000 of each). So the driver's figure is read after the
 * call. A view for which the driver may take one more block is made only if that block fits.
 */
#include "../core/fault.h"
#include "../shared/blocks.h"
#include "../shared/bodies.h"
#include "../shared/charge.h"
#include "../shared/device.h"
#include "../shared/driver.h"
#include "../shared/uncounted.h"

#define VIEWS_PER_BLOCK 32768 /* fewer than lie in one */

/* By device: views that were made and not destroyed, also if their context ended; and the largest number so far. */
static struct {
    atomic_long live_count, peak_count;
} views[HETERO_MAX_DEVICES];

static bool view_fits(int device)
{
    long peak_count = atomic_load(&views[device].peak_count);
    return peak_count == 0 || peak_count % VIEWS_PER_BLOCK != 0 ||
           atomic_load(&views[device].live_count) < peak_count || uncounted_fits(device, BLOCK_BYTES) ||
           FAULT(views_unsettled);
}

/* After a view was made: whether it may stay. */
static bool settle_view(int device)
{
    long live_count = atomic_fetch_add(&views[device].live_count, 1) + 1,
         peak_count = atomic_load(&views[device].peak_count);
    while (live_count > peak_count && !atomic_compare_exchange_weak(&views[device].peak_count, &peak_count, live_count))
        ;
    return FAULT(views_unsettled) || (uncounted_check_rarely(device) && is_within_limit(device));
}

static void view_gone(int device)
{
    if (counted(device))
        atomic_fetch_sub(&views[device].live_count, 1);
}

#define CREATE(call, undo)                                                                                             \
    do {                                                                                                               \
        int device = device_current();                                                                                 \
        if (counted(device) && !view_fits(device))                                                                     \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult answer = call;                                                                                        \
        if (answer != CUDA_SUCCESS || !counted(device) || settle_view(device))                                         \
            return answer;                                                                                             \
        undo;                                                                                                          \
        view_gone(device);                                                                                             \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    } while (0)

#define DESTROY(call)                                                                                                  \
    do {                                                                                                               \
        CUresult answer = call;                                                                                        \
        if (answer == CUDA_SUCCESS)                                                                                    \
            view_gone(device_current());                                                                               \
        return answer;                                                                                                 \
    } while (0)

CUresult create_texture(CUresult (*real)(CUtexObject *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *,
                                         const CUDA_RESOURCE_VIEW_DESC *),
                        CUtexObject *texture, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *description,
                        const CUDA_RESOURCE_VIEW_DESC *resource_view)
{
    CREATE(real(texture, resource, description, resource_view), DRIVER(TexObjectDestroy)(*texture));
}

CUresult create_surface(CUresult (*real)(CUsurfObject *, const CUDA_RESOURCE_DESC *), CUsurfObject *surface,
                        const CUDA_RESOURCE_DESC *resource)
{
    CREATE(real(surface, resource), DRIVER(SurfObjectDestroy)(*surface));
}

CUresult destroy_texture(CUresult (*real)(CUtexObject), CUtexObject texture)
{
    DESTROY(real(texture));
}

CUresult destroy_surface(CUresult (*real)(CUsurfObject), CUsurfObject surface)
{
    DESTROY(real(surface));
}
