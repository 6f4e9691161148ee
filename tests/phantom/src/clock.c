/* A virtual clock: it moves by what the device is given to do, never by real time, so that a run can be repeated.
 *
 * The rates are round figures in the order of a data-centre card. They predict no real device. */
#include "phantom.h"

#include <stdatomic.h>

#define KERNEL_NS 2000          /* a launch */
#define THREADS_PER_NS 32       /* an elementwise kernel */
#define DEVICE_BYTES_PER_NS 1000
#define BUS_BYTES_PER_NS 20

static const double OPERATIONS_PER_NS[] = {
    [RATE_HALF] = 150e3, [RATE_TF32] = 75e3, [RATE_FLOAT] = 10e3, [RATE_DOUBLE] = 5e3};
static _Atomic uint64_t now;

uint64_t clock_now_ns(void) { return now; }
void clock_tick(uint64_t ns) { now += ns; }
void clock_kernel(uint64_t threads) { clock_tick(KERNEL_NS + threads / THREADS_PER_NS); }
void clock_copy(uint64_t bytes, bool crosses_bus) {
    clock_tick(KERNEL_NS + bytes / (crosses_bus ? BUS_BYTES_PER_NS : DEVICE_BYTES_PER_NS));
}
void clock_matmul(double operations, enum rate rate) {
    clock_tick(KERNEL_NS + (uint64_t)(operations / OPERATIONS_PER_NS[rate]));
}
