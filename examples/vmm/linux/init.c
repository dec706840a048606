// The first and only program of a Linux guest: counts and samples with perf_event_open on each processor in turn,
// prints what came of it, and ends the machine.
//
//   cpu N counted user CYCLES INSTRUCTIONS kernel CYCLES INSTRUCTIONS
//   cpu N sampled EVENT period P events E samples S in-program I in-kernel K lost L throttled T nmis M
//   cpu N branches samples S full F records R of-loop L
//   cpu N calls samples S full F records R of-loop L
//   cpu N call-stack samples S full F records R of-loop L
//   cpu N no branches
//   cpu N precise MODE samples S in-loop L elsewhere E lost L nmis M
//   cpu N precise-cycles MODE samples S in-loop L elsewhere E lost L nmis M
//   cpu N no precise
//   cpu N UNIT sampled by WHAT period P samples S in-loop L addressed A in-kernel K lost L nmis M
//   cpu N no ibs_op
//   cpu N top-down slots S retiring R bad-speculation B front-end F back-end E
//   cpu N no top-down
//   end good | failed WHY
//
// Where the initial RAM disk has /hwcheck, runs that in place of it, and prints its exit status:
//
//   hwcheck ended with STATUS
//
#include "program.h"

// Readings of what is counted. The monitor may look at the privilege of a guest only each 100 ms: so the program
// calls nothing for longer than that between two of them.
#define READINGS 5
#define LONG_TURN 2000
// Time to sample, of the guest's clock.
#define SAMPLED_NS 60000000000ull
// Samples to wait for, and events between two of them: the monitor's nominal frequency is 1000 MHz.
#define SAMPLES 150
#define PERIOD 4000000ull
// Samples with branches of the loop alone to wait for, and the records of such a sample.
#define BRANCH_SAMPLES 20
#define FULL 16
// Fetches between two samples, of which the processor counts at most 1,048,560.
#define FETCH_PERIOD 1000000ull
// The ring's pages behind the first.
#define RING_PAGES 8

static int open_event(uint64_t event, int user, int group, uint64_t period) {
    struct perf_event_attr attributes = {
        .type = PERF_TYPE_HARDWARE,
        .size = sizeof attributes,
        .config = event,
        .sample_period = period,
        .sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TIME,
        .disabled = group < 0,
        .exclude_user = !user,
        .exclude_kernel = user,
    };
    // Of this program, on any processor; it stays on one.
    return (int)system_call(__NR_perf_event_open, (long)&attributes, 0, -1, group, 0, 0);
}

static uint64_t value(int event) {
    uint64_t count = 0;
    if (check("read of an event", CALL(read, event, &count, sizeof count)) != sizeof count)
        fail("a count is not 8 bytes", 0);
    return count;
}

// Four counters at once: cycles and instructions, in the program and in the kernel. Each only grows.
static void count(unsigned processor) {
    int events[4];
    uint64_t before[4] = {0};
    for (int place = 0; place < 4; place++) {
        uint64_t event = place % 2 ? PERF_COUNT_HW_INSTRUCTIONS : PERF_COUNT_HW_CPU_CYCLES;
        events[place] = open_event(event, place < 2, place ? events[0] : -1, 0);
        check("perf_event_open to count", events[place]);
    }
    check("enable", CALL(ioctl, events[0], PERF_EVENT_IOC_ENABLE, PERF_IOC_FLAG_GROUP));
    for (int reading = 0; reading < READINGS; reading++) {
        turn(LONG_TURN);
        for (int place = 0; place < 4; place++) {
            uint64_t count = value(events[place]);
            if (count < before[place]) fail("a counter went back", 0);
            before[place] = count;
        }
    }
    check("disable", CALL(ioctl, events[0], PERF_EVENT_IOC_DISABLE, PERF_IOC_FLAG_GROUP));
    named("cpu ", processor);
    for (int place = 0; place < 4; place++) {
        uint64_t count = value(events[place]);
        if (count < before[place]) fail("a counter went back when it stopped", 0);
        before[place] = count;
        named(place == 0 ? " counted user " : place == 2 ? " kernel " : " ", count);
    }
    print();
    turn(1);
    for (int place = 0; place < 4; place++) {
        if (value(events[place]) != before[place]) fail("a stopped counter counts", 0);
        if (before[place] == 0) fail("a counter does not count", 0);
    }
    // The group's first event goes last.
    for (int place = 4; place--;) CALL(close, events[place], 0, 0);
}

// What the ring had.
struct Found {
    uint64_t samples, in_program, in_kernel, lost, throttled, last;
};

// Reads what the kernel wrote to the ring, as perf_event_open(2) says: from data_tail to data_head.
static void drain(struct perf_event_mmap_page *page, struct Found *found) {
    extern char __executable_start[], etext[]; // the linker's
    uint8_t *ring = (uint8_t *)page + PAGE;
    uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE), tail = page->data_tail;
    while (tail < head) {
        // A header of 8 bytes, then the address and the time, or what was lost. Records are multiples of 8.
        uint64_t words[4] = {0};
        for (uint64_t place = 0; place < 4 && tail + place * 8 < head; place++)
            words[place] = *(uint64_t *)(ring + (tail + place * 8) % (RING_PAGES * PAGE));
        uint32_t type = (uint32_t)words[0];
        uint16_t size = (uint16_t)(words[0] >> 48);
        if (size < 8 || size % 8 || tail + size > head) fail("a record of the ring is broken", 0);
        if (type == PERF_RECORD_SAMPLE) {
            found->samples++;
            found->in_program +=
                words[1] >= (uint64_t)__executable_start && words[1] < (uint64_t)etext;
            found->in_kernel += words[1] >> 63;
            if (words[2] < found->last) fail("a sample is older than the one before", 0);
            found->last = words[2];
        }
        if (type == PERF_RECORD_LOST) found->lost += words[2];
        if (type == PERF_RECORD_THROTTLE) found->throttled++;
        tail += size;
    }
    __atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
}

// An NMI each PERIOD events of the program.
static void sample(unsigned processor, uint64_t event, const char *name) {
    int sampled = open_event(event, 1, -1, PERIOD);
    check("perf_event_open to sample", sampled);
    long size = (1 + RING_PAGES) * PAGE;
    long mapped = check("mmap", system_call(__NR_mmap, 0, size, 3, 1 /* shared */, sampled, 0));
    struct perf_event_mmap_page *page = (struct perf_event_mmap_page *)mapped;
    struct Found found = {0};
    uint64_t before = nmis(processor), begin = now();
    check("enable", CALL(ioctl, sampled, PERF_EVENT_IOC_ENABLE, 0));
    while (found.samples < SAMPLES && now() - begin < SAMPLED_NS) {
        turn(20);
        drain(page, &found);
    }
    check("disable", CALL(ioctl, sampled, PERF_EVENT_IOC_DISABLE, 0));
    drain(page, &found);
    uint64_t interrupts = nmis(processor) - before, events = value(sampled);
    named("cpu ", processor);
    text(" sampled ");
    text(name);
    named(" period ", PERIOD);
    named(" events ", events);
    named(" samples ", found.samples);
    named(" in-program ", found.in_program);
    named(" in-kernel ", found.in_kernel);
    named(" lost ", found.lost);
    named(" throttled ", found.throttled);
    named(" nmis ", interrupts);
    print();
    CALL(munmap, mapped, size, 0);
    CALL(close, sampled, 0, 0);
    if (found.samples < SAMPLES) fail("too few samples came in time", 0);
}

// A loop whose branches are known. `loop` counts down, and calls `leaf` at each even number.
extern char loop_top[], loop_odd[], loop_skip[], loop_call[], loop_returned[], loop_back[], loop_end[],
    leaf_top[], leaf_return[];
long branchy(long times);
__asm__(".text\n"
        ".globl branchy\n"
        "branchy:\n"
        "loop_top: dec %rdi\n"
        "test $1, %dil\n"
        "loop_odd: jnz loop_skip\n"
        "loop_call: call leaf_top\n"
        "loop_returned: nop\n"
        "loop_skip: test %rdi, %rdi\n"
        "loop_back: jnz loop_top\n"
        "loop_end: ret\n"
        "leaf_top: nop\n"
        "leaf_return: ret\n");

// The branches of the loop, as its listing has them.
#define EDGES 4
static struct {
    char *from, *to;
} edges[EDGES] = {
    {loop_odd, loop_skip},
    {loop_call, leaf_top},
    {leaf_return, loop_returned},
    {loop_back, loop_top},
};

// Whether the listing allows the branch `next` after the branch `before`: execution goes straight on from the target of
// one to the address of the other.
static int follows(unsigned before, unsigned next) {
    switch (before) {
    case 0: return next == 3;
    case 1: return next == 2;
    case 2: return next == 3;
    default: return next == 0 || next == 1;
    }
}

static unsigned edge(uint64_t from, uint64_t to) {
    unsigned found = 0;
    while (found < EDGES && (from != (uint64_t)edges[found].from || to != (uint64_t)edges[found].to)) found++;
    return found;
}

// Edge of the call of the leaf.
#define CALL_EDGE 1

// Samples with the branches before each, the newest first: all taken ones (`perf record -b`), also with those of the
// kernel (`-j any,u,k`), calls alone (`-j any_call`) or the calls that have not returned (`--call-graph lbr`). Where all branches of a sample are the loop's, each is of the
// listing; of all branches, each follows the one before it; others are calls of the leaf. A sample in the leaf has its
// call. A processor without branch records refuses the event.
static int sample_branches(unsigned processor, uint64_t kind, const char *name) {
    struct perf_event_attr attributes = {
        .type = PERF_TYPE_HARDWARE,
        .size = sizeof attributes,
        .config = PERF_COUNT_HW_CPU_CYCLES,
        .sample_period = PERIOD,
        .sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_BRANCH_STACK,
        .branch_sample_type = PERF_SAMPLE_BRANCH_USER | kind,
        .disabled = 1,
        .exclude_kernel = 1,
    };
    long sampled = system_call(__NR_perf_event_open, (long)&attributes, 0, -1, -1, 0, 0);
    if (sampled == -95 /* EOPNOTSUPP */) return 0;
    check("perf_event_open to sample branches", sampled);
    int stack = kind == PERF_SAMPLE_BRANCH_CALL_STACK, kernel = (kind & PERF_SAMPLE_BRANCH_KERNEL) != 0;
    int all = (kind & PERF_SAMPLE_BRANCH_ANY) != 0;
    long size = (1 + RING_PAGES) * PAGE;
    long mapped = check("mmap", system_call(__NR_mmap, 0, size, 3, 1 /* shared */, sampled, 0));
    struct perf_event_mmap_page *page = (struct perf_event_mmap_page *)mapped;
    uint8_t *ring = (uint8_t *)page + PAGE;
    uint64_t samples = 0, full = 0, records = 0, of_loop = 0, begin = now();
    check("enable", CALL(ioctl, sampled, PERF_EVENT_IOC_ENABLE, 0));
    while (full < BRANCH_SAMPLES && now() - begin < SAMPLED_NS) {
        branchy(1000000);
        uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE), tail = page->data_tail;
        while (tail < head) {
#define WORD(number) (*(uint64_t *)(ring + (tail + (number) * 8) % (RING_PAGES * PAGE)))
            uint32_t type = (uint32_t)WORD(0);
            uint16_t bytes = (uint16_t)(WORD(0) >> 48);
            if (bytes < 8 || bytes % 8 || tail + bytes > head) fail("a record of the ring is broken", 0);
            if (type == PERF_RECORD_SAMPLE) {
                // Header, address, number of branches; three words of each: from, to, flags.
                uint64_t count = WORD(2), ours = 0;
                unsigned newer = EDGES;
                if (24 + count * 24 != bytes) fail("the branches of a sample are not as many as it says", 0);
                samples++;
                for (uint64_t place = 0; place < count; place++) {
                    unsigned found = edge(WORD(3 + 3 * place), WORD(4 + 3 * place));
                    if (!kernel && (WORD(3 + 3 * place) >> 63 || WORD(4 + 3 * place) >> 63))
                        fail("a branch of the kernel", 0);
                    if (found == EDGES) continue;
                    if (!all && found != CALL_EDGE) fail("another branch than a call", 0);
                    if (all && ours == place && ours && !follows(found, newer))
                        fail("branches in an order that the listing does not allow", 0);
                    newer = found;
                    ours++;
                }
                // The program is in the loop, and so are its last branches, unless it has just begun.
                if (WORD(1) > (uint64_t)loop_top && WORD(1) <= (uint64_t)leaf_return && count) {
                    int in_leaf = WORD(1) >= (uint64_t)leaf_top;
                    if (stack && in_leaf && edge(WORD(3), WORD(4)) != CALL_EDGE) fail("a leaf without its call", 0);
                    records += count;
                    of_loop += ours;
                    full += stack ? in_leaf : ours == count && count >= FULL;
                }
            }
            tail += bytes;
        }
        __atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
    }
    check("disable", CALL(ioctl, sampled, PERF_EVENT_IOC_DISABLE, 0));
    named("cpu ", processor);
    text(" ");
    text(name);
    named(" samples ", samples);
    named(" full ", full);
    named(" records ", records);
    named(" of-loop ", of_loop);
    print();
    CALL(munmap, mapped, size, 0);
    CALL(close, sampled, 0, 0);
    if (full < BRANCH_SAMPLES) fail("too few samples with branches came in time", 0);
    return 1;
}

static void sample_branch_stacks(unsigned processor) {
    int has = sample_branches(processor, PERF_SAMPLE_BRANCH_ANY, "branches") &&
              sample_branches(processor, PERF_SAMPLE_BRANCH_ANY | PERF_SAMPLE_BRANCH_KERNEL, "kernel-branches") &&
              sample_branches(processor, PERF_SAMPLE_BRANCH_ANY_CALL, "calls");
    if (!has) {
        named("cpu ", processor);
        text(" no branches");
        print();
        return;
    }
    // AMD's records have no call stack.
    sample_branches(processor, PERF_SAMPLE_BRANCH_CALL_STACK, "call-stack");
}

// Branches between two precise samples: the monitor's rate is 200 in 1000 cycles.
#define BRANCH_PERIOD 800000ull

// Whether an address is that of an instruction of the loop, or of one of its branches.
static int of_listing(uint64_t address, int branches) {
    const char *place = (const char *)address;
    if (place == loop_odd || place == loop_call || place == loop_back || place == loop_end || place == leaf_return)
        return 1;
    // The first instruction has 3 bytes.
    return !branches && (place == loop_top || place == loop_top + 3 || place == loop_returned || place == loop_skip ||
                         place == leaf_top);
}

// Samples retired branches or cycles of the program precisely (`precise_ip`). Samples of the loop have the addresses of
// its branch instructions alone, or of its instructions. With a count in each sample the kernel wants an interrupt per
// record; without, one per buffer, and reads the rest when the event is disabled. A processor without precise records
// refuses the event; one with instruction-based sampling has no unit for it.
static int sample_precisely(unsigned processor, const char *mode, uint64_t event, unsigned precision, int by_buffer) {
    int branches = event == PERF_COUNT_HW_BRANCH_INSTRUCTIONS;
    struct perf_event_attr attributes = {
        .type = PERF_TYPE_HARDWARE,
        .size = sizeof attributes,
        .config = event,
        .sample_period = branches ? BRANCH_PERIOD : PERIOD,
        .sample_type = by_buffer ? PERF_SAMPLE_IP : PERF_SAMPLE_IP | PERF_SAMPLE_READ,
        .precise_ip = precision,
        .disabled = 1,
        .exclude_kernel = 1,
    };
    long sampled = system_call(__NR_perf_event_open, (long)&attributes, 0, -1, -1, 0, 0);
    if (sampled == -95 /* EOPNOTSUPP */ || sampled == -2 /* ENOENT */) return 0;
    check("perf_event_open to sample precisely", sampled);
    long size = (1 + RING_PAGES) * PAGE;
    long mapped = check("mmap", system_call(__NR_mmap, 0, size, 3, 1 /* shared */, sampled, 0));
    struct perf_event_mmap_page *page = (struct perf_event_mmap_page *)mapped;
    uint8_t *ring = (uint8_t *)page + PAGE;
    uint64_t samples = 0, in_loop = 0, lost = 0, before = nmis(processor), begin = now();
    while (in_loop < SAMPLES && now() - begin < SAMPLED_NS) {
        check("enable", CALL(ioctl, sampled, PERF_EVENT_IOC_ENABLE, 0));
        for (int round = 0; round < 20; round++) branchy(1000000);
        check("disable", CALL(ioctl, sampled, PERF_EVENT_IOC_DISABLE, 0));
        uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE), tail = page->data_tail;
        while (tail < head) {
            uint32_t type = (uint32_t)WORD(0);
            uint16_t bytes = (uint16_t)(WORD(0) >> 48);
            if (bytes < 8 || bytes % 8 || tail + bytes > head) fail("a record of the ring is broken", 0);
            if (type == PERF_RECORD_SAMPLE) {
                uint64_t address = WORD(1);
                samples++;
                if (address >> 63) fail("a precise sample is in the kernel", 0);
                if (address >= (uint64_t)loop_top && address <= (uint64_t)leaf_return) {
                    // With precision 1 the address is that of the next instruction.
                    if (!of_listing(address, branches)) fail("a precise sample is of no such instruction", 0);
                    in_loop++;
                }
            }
            if (type == PERF_RECORD_LOST) lost += WORD(2);
            tail += bytes;
        }
        __atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
    }
    uint64_t interrupts = nmis(processor) - before;
    named("cpu ", processor);
    text(branches ? " precise " : " precise-cycles ");
    text(mode);
    named(" samples ", samples);
    named(" in-loop ", in_loop);
    named(" elsewhere ", samples - in_loop);
    named(" lost ", lost);
    named(" nmis ", interrupts);
    print();
    CALL(munmap, mapped, size, 0);
    CALL(close, sampled, 0, 0);
    if (in_loop < SAMPLES) fail("too few precise samples came in time", 0);
    return 1;
}

static void sample_records(unsigned processor) {
    const uint64_t branches = PERF_COUNT_HW_BRANCH_INSTRUCTIONS, cycles = PERF_COUNT_HW_CPU_CYCLES;
    if (sample_precisely(processor, "by-record", branches, 2, 0)) {
        sample_precisely(processor, "by-buffer", branches, 2, 1);
        sample_precisely(processor, "p", cycles, 1, 0);
        sample_precisely(processor, "pp", cycles, 2, 0);
        // perf's modifier P takes the highest that is accepted.
        sample_precisely(processor, "ppp", cycles, 3, 0);
        return;
    }
    named("cpu ", processor);
    text(" no precise");
    print();
}

// A loop whose ops are known: it stores to a word and loads from the next. Its instructions are in the order of `places`.
static uint64_t words[2];
extern char ops_store[], ops_load[], ops_count[], ops_back[], ops_end[];
void ops(long times, uint64_t *words);
__asm__(".text\n"
        ".globl ops\n"
        "ops:\n"
        "ops_store: mov %rdi, (%rsi)\n"
        "ops_load: mov 8(%rsi), %rax\n"
        "ops_count: dec %rdi\n"
        "ops_back: jnz ops_store\n"
        "ops_end: ret\n");

// The data address of a sample of the loop. -1: the sample's address is that of no instruction.
static uint64_t accessed(uint64_t address) {
    if (address == (uint64_t)ops_store) return (uint64_t)&words[0];
    if (address == (uint64_t)ops_load) return (uint64_t)&words[1];
    return address == (uint64_t)ops_count || address == (uint64_t)ops_back ? 0 : -1ull;
}

// Samples everything that a processor executes, by a unit of the kernel's: instruction-based sampling, or precise loads and
// stores (`perf mem record`). Samples of the loop are of its instructions, and have their data address; the precise ones
// are of the instruction that accesses memory so. A processor without the unit lacks its file. Where the kernel has an
// auxiliary event for loads, it refuses a load outside of a group that begins with it.
static int sample_ops(unsigned processor, const char *unit, const char *file, const char *by,
                      struct perf_event_attr what) {
    if (CALL(access, file, 0 /* exists */, 0) != 0) return 0;
    struct perf_event_attr auxiliary = {.type = PERF_TYPE_RAW, .size = sizeof auxiliary, .config = 0x8203, .disabled = 1};
    int loads = what.type == PERF_TYPE_RAW && what.config1 != 0, fetches = what.sample_period == FETCH_PERIOD;
    int grouped = loads && CALL(access, UNITS "cpu/events/mem-loads-aux", 0, 0) == 0;
    long leader = -1;
    if (grouped) {
        leader = system_call(__NR_perf_event_open, (long)&auxiliary, -1, processor, -1, 0, 0);
        check("perf_event_open of the auxiliary event", leader);
    }
    what.size = sizeof what;
    what.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_ADDR | PERF_SAMPLE_DATA_SRC;
    what.disabled = !grouped;
    long sampled = system_call(__NR_perf_event_open, (long)&what, -1, processor, leader, 0, 0);
    check("perf_event_open to sample ops", sampled);
    long first = grouped ? leader : sampled;
    long size = (1 + RING_PAGES) * PAGE;
    long mapped = check("mmap", system_call(__NR_mmap, 0, size, 3, 1 /* shared */, sampled, 0));
    struct perf_event_mmap_page *page = (struct perf_event_mmap_page *)mapped;
    uint8_t *ring = (uint8_t *)page + PAGE;
    uint64_t samples = 0, in_loop = 0, addressed = 0, in_kernel = 0, lost = 0;
    uint64_t before = nmis(processor), begin = now();
    check("enable", CALL(ioctl, first, PERF_EVENT_IOC_ENABLE, 0));
    while (in_loop < SAMPLES && now() - begin < SAMPLED_NS) {
        ops(2000000, words);
        uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE), tail = page->data_tail;
        while (tail < head) {
            uint32_t type = (uint32_t)WORD(0);
            uint16_t bytes = (uint16_t)(WORD(0) >> 48);
            if (bytes < 8 || bytes % 8 || tail + bytes > head) fail("a record of the ring is broken", 0);
            if (type == PERF_RECORD_SAMPLE) {
                uint64_t address = WORD(1), data = WORD(2);
                samples++;
                in_kernel += address >> 63;
                if (address >= (uint64_t)ops_store && address < (uint64_t)ops_end) {
                    uint64_t expected = accessed(address), stored = (uint64_t)&words[0];
                    if (expected == -1ull) fail("a sample is between two instructions", 0);
                    // A fetch has no data.
                    if (data != (fetches ? 0 : expected)) fail("a sample has another data address", 0);
                    // A load or a store. A kernel may tell nothing of it.
                    uint64_t kind = WORD(3) & (PERF_MEM_OP_LOAD | PERF_MEM_OP_STORE);
                    if (kind && data && kind != (data == stored ? PERF_MEM_OP_STORE : PERF_MEM_OP_LOAD))
                        fail("a sample has another access", 0);
                    if (what.precise_ip && (!data || loads == (data == stored)))
                        fail("a precise sample is of no such access", 0);
                    in_loop++;
                    addressed += data != 0;
                }
            }
            if (type == PERF_RECORD_LOST) lost += WORD(2);
            tail += bytes;
        }
        __atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
    }
    check("disable", CALL(ioctl, first, PERF_EVENT_IOC_DISABLE, 0));
    uint64_t interrupts = nmis(processor) - before;
    named("cpu ", processor);
    text(" ");
    text(unit);
    text(" sampled by ");
    text(by);
    named(" period ", what.sample_period);
    named(" samples ", samples);
    named(" in-loop ", in_loop);
    named(" addressed ", addressed);
    named(" in-kernel ", in_kernel);
    named(" lost ", lost);
    named(" nmis ", interrupts);
    print();
    CALL(munmap, mapped, size, 0);
    CALL(close, sampled, 0, 0);
    if (grouped) CALL(close, leader, 0, 0);
    if (in_loop < SAMPLES) fail("too few samples of ops came in time", 0);
    return 1;
}

static int sample_unit(unsigned processor, const char *unit, const char *file, const char *by, uint64_t config,
                       uint64_t period) {
    struct perf_event_attr what = {.type = (uint32_t)number_in(file), .config = config, .sample_period = period};
    return sample_ops(processor, unit, file, by, what);
}

static void sample_by_instruction(unsigned processor) {
    const char *op = UNITS "ibs_op/type", *fetch = UNITS "ibs_fetch/type";
    int has = sample_unit(processor, "ibs_op", op, "cycles", 0, PERIOD) +
              sample_unit(processor, "ibs_op", op, "ops", 1 << 19, PERIOD) +
              sample_unit(processor, "ibs_fetch", fetch, "fetches", 0, FETCH_PERIOD);
    if (has == 0) {
        named("cpu ", processor);
        text(" no ibs_op");
        print();
    }
}

// Accesses between two samples: the monitor's rates are a load in 4 instructions and a store in 8.
#define ACCESS_PERIOD 500000ull
static void sample_accesses(unsigned processor) {
    // MEM_TRANS_RETIRED.LOAD_LATENCY of 30 cycles or more, perf's default; MEM_INST_RETIRED.ALL_STORES.
    struct perf_event_attr loads = {.type = PERF_TYPE_RAW, .config = 0x1CD, .config1 = 30, .sample_period = ACCESS_PERIOD,
                                    .precise_ip = 2, .exclude_kernel = 1};
    struct perf_event_attr stores = loads;
    stores.config = 0x82D0;
    stores.config1 = 0;
    int has = sample_ops(processor, "mem-loads", UNITS "cpu/events/mem-loads", "loads", loads) +
              sample_ops(processor, "mem-stores", UNITS "cpu/events/mem-stores", "stores", stores);
    if (has == 0) {
        named("cpu ", processor);
        text(" no mem-loads");
        print();
    }
}

// Counts the issue slots and their parts as one group, `perf stat --topdown`: the kernel divides the slots by the metrics.
// A kernel that knows no such events of this processor has no files of them.
#define PARTS 5
static void count_top_down(unsigned processor) {
    // Event 0 of pseudo-encodings: slots, and the four parts of level 1.
    static const uint64_t configs[PARTS] = {0x400, 0x8000, 0x8100, 0x8200, 0x8300};
    static const char *const names[PARTS] = {" top-down slots ", " retiring ", " bad-speculation ", " front-end ",
                                             " back-end "};
    int events[PARTS];
    named("cpu ", processor);
    if (CALL(access, UNITS "cpu/events/topdown-retiring", 0 /* exists */, 0) != 0) {
        text(" no top-down");
        print();
        return;
    }
    for (int place = 0; place < PARTS; place++) {
        struct perf_event_attr attributes = {
            .type = PERF_TYPE_RAW,
            .size = sizeof attributes,
            .config = configs[place],
            .disabled = place == 0,
        };
        events[place] = (int)system_call(__NR_perf_event_open, (long)&attributes, 0, -1, place ? events[0] : -1, 0, 0);
        check("perf_event_open of top-down events", events[place]);
    }
    check("enable", CALL(ioctl, events[0], PERF_EVENT_IOC_ENABLE, PERF_IOC_FLAG_GROUP));
    turn(LONG_TURN);
    check("disable", CALL(ioctl, events[0], PERF_EVENT_IOC_DISABLE, PERF_IOC_FLAG_GROUP));
    for (int place = 0; place < PARTS; place++) named(names[place], value(events[place]));
    print();
    for (int place = PARTS; place--;) CALL(close, events[place], 0, 0);
}

// Runs /hwcheck on the first processor, with the kernel's devices and sysfs, and ends the machine.
static void run_hwcheck(void) {
    // Few programs and runs: a system call takes long where the kernel is interpreted.
    static const char *const arguments[] = {
        "/hwcheck", "--yes", "--programs", "20", "--runs", "3", "--report", "/report.json", NULL};
    // AVX is left alone: the kernel was told not to save it.
    static const char *const environment[] = {
        "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-ERMS,-XSAVE,-XSAVEC", NULL};
    check("mount of /dev", system_call(__NR_mount, (long)"devtmpfs", (long)"/dev", (long)"devtmpfs", 0, 0, 0));
    long child = check("fork", CALL(fork, 0, 0, 0));
    if (child == 0) {
        CALL(execve, arguments[0], arguments, environment);
        CALL(exit, 127, 0, 0);
    }
    int status = 0;
    check("wait4", system_call(__NR_wait4, child, (long)&status, 0, 0, 0, 0));
    named("hwcheck ended with ", (uint64_t)(status >> 8 & 0xFF) + 1000 * (uint64_t)(status & 0x7F));
    print();
    CALL(ioctl, 1, 0x5409 /* TCSBRK */, 1);
    end(0x10);
}

__attribute__((used)) static void start(void) {
    mount_all();
    if (CALL(access, "/hwcheck", 1 /* executable */, 0) == 0) run_hwcheck();
    text("user space");
    print();
    unsigned processor = 0;
    for (; processor < 64; processor++) {
        uint64_t only = 1ull << processor;
        if (CALL(sched_setaffinity, 0, sizeof only, &only) < 0) break;
        count(processor);
        sample(processor, PERF_COUNT_HW_CPU_CYCLES, "cycles");
        sample(processor, PERF_COUNT_HW_INSTRUCTIONS, "instructions");
        sample_branch_stacks(processor);
        sample_records(processor);
        sample_accesses(processor);
        sample_by_instruction(processor);
        count_top_down(processor);
    }
    named("processors ", processor);
    print();
    end_good();
}
