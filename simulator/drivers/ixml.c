/* libixml.so for Iluvatar cards that are not there: NVML's calls, so far as CoreX has them (ixml.map), and some more.
 *
 * A [device]'s health is ok, or some of sysbus, memory-controller, temperature, voltage, ecc, memory and pcie; lost is
 * a card that fell off the bus.
 */
#include "ixml.h"

#include "nvml.h"

const char fake_vendor[] = "iluvatar";

bool nvml_lost(const char *health)
{
    return strcmp(health, "lost") == 0;
}

EXPORT nvmlReturn_t ixmlDeviceGetHealth(nvmlDevice_t handle, unsigned long long *health)
{
    static const char *const words[] = {"sysbus", "memory-controller", "temperature", "voltage", "ecc", "memory",
                                        "pcie"};
    FILLS(health);
    ALIVE(device, handle);
    NEEDS(health);
    *health = 0;
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        for (const char *cursor = device->health; (cursor = strstr(cursor, words[i])); cursor++) {
            const char *end = cursor + strlen(words[i]);
            if ((cursor == device->health || cursor[-1] == ' ') && (!*end || *end == ' '))
                *health |= 1ull << i;
        }
    return NVML_SUCCESS;
}

/* Named so. */
EXPORT nvmlReturn_t ixmlDeviceGetEccErros(nvmlDevice_t handle, unsigned *single_error, unsigned *double_error)
{
    FILLS(single_error);
    ALIVE(device, handle);
    NEEDS(single_error && double_error);
    *single_error = 0;
    *double_error = strstr(device->health, "ecc") != NULL;
    return NVML_SUCCESS;
}

/* Which chip of its board it is; a board here has one. */
EXPORT nvmlReturn_t ixmlDeviceGetBoardPosition(nvmlDevice_t handle, unsigned *position)
{
    FILLS(position);
    ALIVE(device, handle);
    (void)device;
    NEEDS(position);
    *position = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t first_device, nvmlDevice_t second_device, int *is_same_board)
{
    FILLS(is_same_board);
    ALIVE(device, first_device);
    (void)device;
    NEEDS(valid(second_device) && is_same_board);
    *is_same_board = first_device->device == second_device->device;
    return NVML_SUCCESS;
}
