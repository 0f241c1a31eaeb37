/* Devices are reset here, and with each ends what stands for its context. */
#include "../shared/bodies.h"
#include "../shared/device.h"
#include "../shared/ends.h"

hipError_t reset_primary(hipError_t (*real)(hipDevice_t), hipDevice_t device)
{
    struct card_use before = before_context_ends(CONTEXT_OF(device));
    hipError_t answer = real(device);
    after_context_ended(answer == hipSuccess ? CONTEXT_OF(device) : NULL, before);
    return answer;
}

hipError_t reset_device(hipError_t (*real)(void))
{
    context_t context = context_current();
    struct card_use before = before_context_ends(context);
    hipError_t answer = real();
    after_context_ended(answer == hipSuccess ? context : NULL, before);
    return answer;
}
