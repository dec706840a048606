// The first program of a Linux guest whose accesses to its PMU are traced: performs operations of perf events, and
// marks the begin of each by its number, and the end by 0, at the monitor's port of phases. Each is performed several
// times. Without the records or the unit that an operation needs, it is left out.
//
// Branches of this program are counted, on general counters of each vendor's PMU; no event has a ring, so that no
// interrupt writes a sample.
//
//   operation N NAME times T
//   end good | failed WHY
#include "program.h"

// Operations, as accesses.awk has them.
enum Operation {
    INTERRUPT = 1,
    SWITCH,
    START_ONE,
    GROUP_INTERRUPT,
    GROUP_SWITCH,
    GROUP_START,
    GROUP_READ,
    GROUP_STOP,
    ROTATE,
    PRECISE,
    BRANCHES,
    OP,
    ONE_INTERRUPT,
    START_BESIDE_PINNED,
    OP_ADDRESS,
};

// How often each is performed.
#define TIMES 20
#define TIME_NS 60000000000ull
// Branches between two samples, a tenth of a second by the monitor's rate: more than a tick, because the kernel stops an
// event until the next tick if it interrupts often, and it takes an interrupt that is traced for a long one.
#define PERIOD 20000000ull
#define EVENTS 4

static void mark(unsigned char operation) {
    __asm__ volatile("outb %0, $0xE8" : : "a"(operation) : "memory");
}

static void say(enum Operation operation, const char *name, unsigned times) {
    named("operation ", operation);
    text(" ");
    text(name);
    named(" times ", times);
    print();
}

// Opens an event of branches of this program; the first of a group, and a single one, is disabled.
static int open_branches(int group, uint64_t period, int pinned) {
    struct perf_event_attr attributes = {
        .type = PERF_TYPE_HARDWARE,
        .size = sizeof attributes,
        .config = PERF_COUNT_HW_BRANCH_INSTRUCTIONS,
        .sample_period = period,
        .sample_type = period ? PERF_SAMPLE_IP : 0,
        .read_format = PERF_FORMAT_GROUP,
        .disabled = group < 0,
        .pinned = pinned != 0,
        .exclude_kernel = 1,
    };
    long event = system_call(__NR_perf_event_open, (long)&attributes, 0, -1, group, 0, 0);
    return (int)check("perf_event_open", event);
}

static void enable(int event) { check("enable", CALL(ioctl, event, PERF_EVENT_IOC_ENABLE, 0)); }
static void disable(int event) { check("disable", CALL(ioctl, event, PERF_EVENT_IOC_DISABLE, 0)); }

// Opens a group of four, or four events, of which all but the last may be pinned; the first interrupts.
static void open_four(int events[EVENTS], int grouped, uint64_t period, int pinned) {
    for (int place = 0; place < EVENTS; place++)
        events[place] =
            open_branches(grouped && place ? events[0] : -1, place ? 0 : period, pinned && place < EVENTS - 1);
}

static void close_all(const int *events, int count) {
    while (count--) CALL(close, events[count], 0, 0);
}

// Runs in a loop while interrupts come; a mark after each millisecond or so ends an interrupt's accesses before those of
// a thread of the kernel.
static void interrupts(enum Operation operation, const char *name) {
    uint64_t before = nmis(0), begin = now(), came = 0;
    while (came < TIMES && now() - begin < TIME_NS) {
        for (int time = 0; time < 50; time++) {
            turn(5);
            mark(operation);
        }
        mark(0);
        came = nmis(0) - before;
    }
    say(operation, name, (unsigned)came);
}

// A thread without events, which answers each byte; both are on one processor.
static int question[2], answer[2];
static void answering(void) {
    char byte;
    while (CALL(read, question[0], &byte, 1) == 1) CALL(write, answer[1], &byte, 1);
    CALL(exit, 0, 0, 0);
}

static void switches(enum Operation operation, const char *name) {
    char byte = 0;
    for (int time = 0; time < TIMES; time++) {
        turn(1);
        mark(operation);
        check("write to a pipe", CALL(write, question[1], &byte, 1));
        check("read from a pipe", CALL(read, answer[0], &byte, 1));
        mark(0);
    }
    say(operation, name, TIMES);
}

// Starts a fourth event while three run. Linux takes all events that are not pinned off their counters for it, and puts
// them back; beside pinned ones, the accesses are those of the one event.
static void start_one(enum Operation operation, const char *name, int pinned) {
    int events[EVENTS];
    open_four(events, 0, 0, pinned);
    for (int place = 0; place < EVENTS - 1; place++) enable(events[place]);
    for (int time = 0; time < TIMES; time++) {
        mark(operation);
        enable(events[EVENTS - 1]);
        mark(0);
        disable(events[EVENTS - 1]);
    }
    say(operation, name, TIMES);
    close_all(events, EVENTS);
}

static void single_events(void) {
    int events[EVENTS];
    start_one(START_ONE, "start of one more", 0);
    start_one(START_BESIDE_PINNED, "start of one more beside pinned ones", 1);
    open_four(events, 0, PERIOD, 0);
    for (int place = 0; place < EVENTS; place++) enable(events[place]);
    interrupts(INTERRUPT, "interrupt");
    close_all(events, EVENTS);
    // Without an interrupt meanwhile.
    open_four(events, 0, 0, 0);
    for (int place = 0; place < EVENTS; place++) enable(events[place]);
    switches(SWITCH, "switch");
    close_all(events, EVENTS);
}

static void group(void) {
    int events[EVENTS];
    uint64_t values[1 + EVENTS];
    open_four(events, 1, PERIOD, 0);
    enable(events[0]);
    interrupts(GROUP_INTERRUPT, "interrupt of a group");
    close_all(events, EVENTS);
    open_four(events, 1, 0, 0);
    for (int time = 0; time < TIMES; time++) {
        mark(GROUP_START);
        enable(events[0]);
        mark(GROUP_READ);
        check("read", CALL(read, events[0], values, sizeof values));
        mark(GROUP_STOP);
        disable(events[0]);
        mark(0);
    }
    say(GROUP_START, "start of a group", TIMES);
    say(GROUP_READ, "read of a group", TIMES);
    say(GROUP_STOP, "stop of a group", TIMES);
    enable(events[0]);
    switches(GROUP_SWITCH, "switch of a group");
    close_all(events, EVENTS);
}

// Two groups of two take turns on two counters, while two other events stay. The kernel shows in an event's page
// whether the event has a counter: so each rotation is seen to end, and has a mark before and after.
static void rotations(void) {
    int events[3 * 2];
    unsigned times = 0;
    for (int place = 0; place < 2; place++) {
        events[place] = open_branches(-1, 0, 1);
        enable(events[place]);
    }
    for (int place = 2; place < 6; place++) {
        events[place] = open_branches(place % 2 ? events[place - 1] : -1, 0, 0);
    }
    enable(events[2]);
    enable(events[4]);
    long mapped = check("mmap", system_call(__NR_mmap, 0, PAGE, 3, 1 /* shared */, events[2], 0));
    volatile struct perf_event_mmap_page *page = (volatile struct perf_event_mmap_page *)mapped;
    uint64_t begin = now();
    mark(ROTATE);
    for (int has = page->index != 0; times < TIMES && now() - begin < TIME_NS; turn(1)) {
        if ((page->index != 0) == has) continue;
        has = !has;
        mark(ROTATE);
        times++;
    }
    mark(0);
    if (times == 0) fail("no rotation", 0);
    say(ROTATE, "rotation", times);
    CALL(munmap, mapped, PAGE, 0);
    close_all(events, 6);
}

// One event with records or branches, or of another unit, alone.
static void sampled(enum Operation operation, const char *name, struct perf_event_attr what, int processor) {
    what.size = sizeof what;
    what.disabled = 1;
    long event = system_call(__NR_perf_event_open, (long)&what, processor < 0 ? 0 : -1, processor, -1, 0, 0);
    if (event == -95 /* EOPNOTSUPP */ || event == -2 /* ENOENT */) return;
    check("perf_event_open to sample", event);
    enable((int)event);
    interrupts(operation, name);
    disable((int)event);
    CALL(close, event, 0, 0);
}

static void samples(void) {
    const struct perf_event_attr branches = {
        .type = PERF_TYPE_HARDWARE,
        .config = PERF_COUNT_HW_BRANCH_INSTRUCTIONS,
        .sample_period = PERIOD,
        .sample_type = PERF_SAMPLE_IP,
        .exclude_kernel = 1,
    };
    sampled(ONE_INTERRUPT, "interrupt of one event", branches, -1);
    // With a count in each sample the kernel wants an interrupt per record. A processor with instruction-based sampling
    // has precise events in another unit.
    int with_ops = CALL(access, UNITS "ibs_op/type", 0 /* exists */, 0) == 0;
    struct perf_event_attr what = branches;
    what.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_READ;
    what.precise_ip = 2;
    if (!with_ops) sampled(PRECISE, "precise interrupt", what, -1);
    struct perf_event_attr op = {
        .type = (uint32_t)number_in(UNITS "ibs_op/type"),
        .sample_period = PERIOD * 5,
        .sample_type = PERF_SAMPLE_IP,
    };
    if (with_ops) {
        sampled(OP_ADDRESS, "address of a sampled op", op, 0);
        op.sample_type |= PERF_SAMPLE_RAW;
        sampled(OP, "sampled op", op, 0);
    }
    // Last, because they take longest.
    what = branches;
    what.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_BRANCH_STACK;
    what.branch_sample_type = PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_ANY;
    sampled(BRANCHES, "branch sample", what, -1);
}

__attribute__((used)) static void start(void) {
    mount_all();
    check("iopl", CALL(iopl, 3, 0, 0));
    uint64_t only = 1;
    check("sched_setaffinity", CALL(sched_setaffinity, 0, sizeof only, &only));
    check("pipe", CALL(pipe, question, 0, 0));
    check("pipe", CALL(pipe, answer, 0, 0));
    if (check("fork", CALL(fork, 0, 0, 0)) == 0) answering();
    single_events();
    group();
    rotations();
    samples();
    end_good();
}
