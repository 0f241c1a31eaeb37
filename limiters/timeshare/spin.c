/* What passes the closed gate because a kernel in flight may spin for it (spin.h). */
#include "spin.h"

/* The device has not come further for so long: one launch passes; the next after twice as long. At most so many do
 * until nothing of the grant is in flight, and none while the grant owes much. */
#define SPINS_NS (20 * MS)
#define SPINS    4u

/* So many small copies pass from one look to the next. */
#define SPINS_SMALL 8u

/* A launch into the stream of the kernel cannot be what that waits for. What the host does after it may be: after so
 * long one passes, whatever the grant owes, because nothing else would end the wait. */
#define SPINS_LONG_NS (30000 * MS)

/* Whether siblings have something in flight that is of no time slice of theirs. */
static bool left_by_siblings(struct time_slice *time_slice)
{
    return time_slice_siblings(time_slice) > 0 && time_slice_of_sibling(time_slice) != PAGE_RUNS;
}

void spin_note(struct governor *governor, uint64_t now_ns, bool works)
{
    struct spin *spin = &governor->spin;
    uint32_t signaled_fences = gate_signaled_fences(&governor->gate), launches = gate_launches(&governor->gate);
    if (!works)
        *spin = (struct spin){0};
    if (!works || signaled_fences != spin->signaled_fences || launches != spin->launch_count)
        spin->stalled_at_ns = now_ns;
    spin->signaled_fences = signaled_fences;
    spin->launch_count = launches;
}

void spin_pass(struct governor *governor, uint64_t now_ns, bool works)
{
    struct spin *spin = &governor->spin;
    struct gate *gate = &governor->gate;
    bool any_works = works || left_by_siblings(&governor->time_slice);
    spin_note(governor, now_ns, any_works);
    if (!any_works)
        gate_give_token(gate, GATE_TOKEN_NONE);
    bool small = works && atomic_load(&gate->queue.waiting_small_count) > 0 &&
                 governor_balance(governor) >= -ACCOUNT_MUCH_NS;
    gate_let_small_through(gate, small ? SPINS_SMALL : 0);
    if (!any_works || atomic_load(&gate->queue.waiting_count) == 0)
        return;
    uint64_t stood_ns = elapsed(spin->stalled_at_ns, now_ns);
    if (stood_ns > SPINS_LONG_NS && !spin->has_passed_long) {
        spin->has_passed_long = true;
        gate_give_token(gate, GATE_TOKEN_ANY);
    } else if (atomic_load(&gate->queue.token) == GATE_TOKEN_NONE && spin->pass_count < SPINS &&
               stood_ns >= SPINS_NS << spin->pass_count && governor_balance(governor) >= -ACCOUNT_MUCH_NS) {
        spin->pass_count++;
        gate_give_token(gate, works ? GATE_TOKEN_APART : GATE_TOKEN_ANY);
    }
}
