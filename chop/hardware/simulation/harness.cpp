// Drives a circuit with the beats in a file and writes its results, for chop/hardware/simulation.
//
// ports.h, made for each circuit, defines HANDSHAKES, INPUTS and OUTPUTS. What the program
// prints comes from the circuit; how the run went is in the file `status`.

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "Vtop.h"
#include "verilated.h"

#if defined(WAVES_VCD)
#include "verilated_vcd_c.h"
using Waves = VerilatedVcdC;
#elif defined(WAVES_FST)
#include "verilated_fst_c.h"
using Waves = VerilatedFstC;
#endif

namespace {

using Top = Vtop;
using Words = std::vector<uint32_t>;
constexpr uint64_t NEVER = ~uint64_t{0};
constexpr int RESET_CYCLES = 4;

// The sources may be somebody else's: a port with other words than described is not compiled.
template <std::size_t WORDS, std::size_t DESCRIBED>
constexpr void check() {
    static_assert(WORDS == DESCRIBED,
                  "a port of the sources is wider or narrower than circuit.json says; run ch emit again");
}
template <std::size_t COUNT, typename T>
void put(T& port, const uint32_t* words) {
    check<(sizeof(T) > 4 ? 2 : 1), COUNT>();
    uint64_t value = words[0];
    if (COUNT > 1) value |= static_cast<uint64_t>(words[1]) << 32;
    port = static_cast<T>(value);
}
template <std::size_t COUNT, std::size_t N>
void put(VlWide<N>& port, const uint32_t* words) {
    check<N, COUNT>();
    for (std::size_t i = 0; i < N; ++i) port[i] = words[i];
}
template <std::size_t COUNT, typename T>
void get(const T& port, uint32_t* words) {
    check<(sizeof(T) > 4 ? 2 : 1), COUNT>();
    const uint64_t value = port;
    words[0] = static_cast<uint32_t>(value);
    if (COUNT > 1) words[1] = static_cast<uint32_t>(value >> 32);
}
template <std::size_t COUNT, std::size_t N>
void get(const VlWide<N>& port, uint32_t* words) {
    check<N, COUNT>();
    for (std::size_t i = 0; i < N; ++i) words[i] = port[i];
}

struct Input {
    uint64_t beats, words;
    void (*put)(Top&, const uint32_t*);
    void (*set_valid)(Top&, bool);
    bool (*ready)(const Top&);
};
struct Output {
    uint64_t beats, words;
    void (*get)(const Top&, uint32_t*);
    bool (*valid)(const Top&);
    void (*set_ready)(Top&, bool);
};

#include "ports.h"

constexpr std::size_t NUM_INPUTS = sizeof(INPUTS) / sizeof(INPUTS[0]);
constexpr std::size_t NUM_OUTPUTS = sizeof(OUTPUTS) / sizeof(OUTPUTS[0]);

struct Settings {
    std::string inputs, results, status, waves;
    uint64_t samples, hang_after, drain, half_period;
    double stall_inputs, stall_outputs;
    uint32_t seed;
};

class Random {
    uint32_t state;

public:
    explicit Random(uint32_t seed) : state{seed * 2654435761u + 1u} {}
    bool chance(double share) {
        if (share <= 0) return false;
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        return state < share * 4294967296.0;
    }
};

class Bench {
    const Settings settings;
    VerilatedContext context;
    std::unique_ptr<Top> top;
    Random random;
    std::vector<Words> sent_words{NUM_INPUTS}, got_words{NUM_OUTPUTS};
    std::vector<uint64_t> sent, got, started, finished;
    std::vector<char> offered;
    uint64_t cycle = 0, last_progress = 0;
#if defined(WAVES_VCD) || defined(WAVES_FST)
    std::unique_ptr<Waves> waves;
#endif

    uint64_t total_in(std::size_t i) const { return settings.samples * INPUTS[i].beats; }
    uint64_t total_out(std::size_t i) const { return settings.samples * OUTPUTS[i].beats; }

    void half(bool clock) {
        top->clk = clock;
        top->eval();
#if defined(WAVES_VCD) || defined(WAVES_FST)
        if (waves) waves->dump(context.time());
#endif
        context.timeInc(settings.half_period);
    }

    void reset() {
        for (const Input& input : INPUTS) input.set_valid(*top, false);
        for (const Output& output : OUTPUTS) output.set_ready(*top, false);
        top->rst = 1;
        for (int i = 0; i < RESET_CYCLES; ++i) half(false), half(true);
        top->rst = 0;
    }

    // Valid stays up until the beat is taken. Without handshakes all ports stall together.
    void offer() {
        const bool together = random.chance(settings.stall_inputs);
        for (std::size_t i = 0; i < NUM_INPUTS; ++i) {
            if (!offered[i] && sent[i] < total_in(i)) {
                const bool stalls
                    = HANDSHAKES && i > 0 ? random.chance(settings.stall_inputs) : together;
                if (!stalls) {
                    INPUTS[i].put(*top, &sent_words[i][sent[i] * INPUTS[i].words]);
                    offered[i] = true;
                }
            }
            INPUTS[i].set_valid(*top, offered[i]);
        }
    }

    // Returns false if a port gives more results than there are samples.
    bool step() {
        offer();
        std::vector<char> ready(NUM_OUTPUTS, 1);
        for (std::size_t i = 0; i < NUM_OUTPUTS; ++i) {
            ready[i] = !HANDSHAKES || !random.chance(settings.stall_outputs);
            OUTPUTS[i].set_ready(*top, ready[i]);
        }
        half(false);
        for (std::size_t i = 0; i < NUM_INPUTS; ++i) {
            if (!offered[i] || !INPUTS[i].ready(*top)) continue;
            const uint64_t sample = sent[i] / INPUTS[i].beats;
            if (started[sample] == NEVER) started[sample] = cycle;
            ++sent[i];
            offered[i] = false;
            last_progress = cycle;
        }
        for (std::size_t i = 0; i < NUM_OUTPUTS; ++i) {
            if (!ready[i] || !OUTPUTS[i].valid(*top)) continue;
            if (got[i] == total_out(i)) return false;
            OUTPUTS[i].get(*top, &got_words[i][got[i] * OUTPUTS[i].words]);
            const uint64_t sample = got[i] / OUTPUTS[i].beats;
            if (++got[i] % OUTPUTS[i].beats == 0) finished[sample] = cycle;
            last_progress = cycle;
        }
        half(true);
        ++cycle;
        return true;
    }

    bool complete() const {
        for (std::size_t i = 0; i < NUM_OUTPUTS; ++i)
            if (got[i] < total_out(i)) return false;
        return true;
    }

    const char* run_all() {
        while (!complete()) {
            if (!step()) return "extra";
            if (context.gotFinish()) return "finish";
            if (cycle - last_progress > settings.hang_after) return "hang";
        }
        for (uint64_t i = 0; i < settings.drain; ++i)
            if (!step()) return "extra";
        return "done";
    }

    bool read() {
        std::FILE* file = std::fopen(settings.inputs.c_str(), "rb");
        if (!file) return false;
        bool whole = true;
        for (std::size_t i = 0; i < NUM_INPUTS; ++i) {
            sent_words[i].resize(total_in(i) * INPUTS[i].words);
            const std::size_t size = sent_words[i].size();
            whole = whole && std::fread(sent_words[i].data(), 4, size, file) == size;
        }
        std::fclose(file);
        return whole;
    }

    bool write(const char* status) const {
        std::FILE* told = std::fopen(settings.status.c_str(), "w");
        if (!told) return false;
        std::fprintf(told, "%s\n%" PRIu64 "\n", status, cycle);
        for (const auto* counts : {&sent, &got}) {
            for (uint64_t count : *counts) std::fprintf(told, "%" PRIu64 " ", count);
            std::fprintf(told, "\n");
        }
        if (std::fclose(told) != 0) return false;
        std::FILE* file = std::fopen(settings.results.c_str(), "wb");
        if (!file) return false;
        bool whole = true;
        for (const Words& words : got_words)
            whole = whole && std::fwrite(words.data(), 4, words.size(), file) == words.size();
        for (const auto* stamps : {&started, &finished})
            whole = whole && std::fwrite(stamps->data(), 8, stamps->size(), file) == stamps->size();
        return std::fclose(file) == 0 && whole;
    }

public:
    explicit Bench(const Settings& given)
        : settings{given}, random{given.seed}, sent(NUM_INPUTS), got(NUM_OUTPUTS),
          started(given.samples, NEVER), finished(given.samples, NEVER), offered(NUM_INPUTS) {
        // registers begin with random values, so that a circuit cannot rely on zeros
        context.randReset(2);
        context.randSeed(static_cast<int>(given.seed + 1));
        context.traceEverOn(!given.waves.empty());
        top.reset(new Top{&context});
        for (std::size_t i = 0; i < NUM_OUTPUTS; ++i)
            got_words[i].resize(total_out(i) * OUTPUTS[i].words);
    }

    int run() {
        if (!read()) return std::fprintf(stderr, "error: cannot read the inputs\n"), 1;
#if defined(WAVES_VCD) || defined(WAVES_FST)
        if (!settings.waves.empty()) {
            waves.reset(new Waves);
            top->trace(waves.get(), 99);
            waves->open(settings.waves.c_str());
        }
#endif
        reset();
        const char* status = run_all();
#if defined(WAVES_VCD) || defined(WAVES_FST)
        if (waves) waves->close();
#endif
        top->final();
        if (!write(status)) return std::fprintf(stderr, "error: cannot write the results\n"), 1;
        return 0;
    }
};

}  // namespace

int main(int count, char** arguments) {
    if (count != 12) return std::fprintf(stderr, "error: 11 arguments are needed\n"), 2;
    const auto whole = [&](int i) { return std::strtoull(arguments[i], nullptr, 10); };
    Settings settings{arguments[1], arguments[2], arguments[3], arguments[4],
                      whole(5),     whole(6),     whole(7),     whole(8),
                      std::strtod(arguments[9], nullptr), std::strtod(arguments[10], nullptr),
                      static_cast<uint32_t>(whole(11))};
    return Bench{settings}.run();
}
