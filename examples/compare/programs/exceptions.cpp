// Exceptions through functions of their own frames: `main` calls `rounds`, which calls `catches`, which calls `descends`,
// which calls itself and `throws`; a destructor on the way calls `clean_up`.
#include <cstdint>
#include <cstdio>
#include <stdexcept>

#define OWN __attribute__((noipa, noinline))

static volatile uint64_t sink = 1;

OWN uint64_t computes(uint64_t value) {
    for (int i = 0; i < 3000; i++) value = (value ^ (value >> 7)) * 0x9E3779B97F4A7C15u;
    return value;
}

OWN void clean_up(uint64_t value) {
    sink = sink + computes(value);
    sink = sink + 1;
}

struct Guard {
    uint64_t value;
    ~Guard() { clean_up(value); }
};

OWN void throws(uint64_t value) {
    sink = sink + computes(value);
    throw std::runtime_error("expected");
}

OWN uint64_t descends(uint64_t value, int depth) {
    Guard guard{value};
    if (depth == 0) throws(value);
    return descends(value + 1, depth - 1) + 1;
}

OWN uint64_t catches(uint64_t value) {
    try {
        return descends(value, 8) + 1;
    } catch (const std::runtime_error &) {
        return computes(value) + 1;
    }
}

OWN uint64_t rounds(int count) {
    uint64_t sum = 1;
    for (int i = 0; i < count; i++) sum += catches(sum);
    return sum + 1;
}

int main() {
    uint64_t sum = rounds(25000);
    std::printf("%lu\n", static_cast<unsigned long>(sum + sink));
}
