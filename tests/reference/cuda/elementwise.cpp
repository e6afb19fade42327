// elementwise.cu against the same in double precision.
#include "emulator.hpp"

#include "../../../crates/mcprl-engine/src/model/ops/cuda/elementwise.cu"

using Doubles = std::vector<double>;

void norms() {
    for (u32 width : {48u, 700u}) {
        const u32 rows = 11, threads = width <= 512 ? 32 : BLOCK, blocks = (rows + BLOCK / threads - 1) / (BLOCK / threads);
        auto x = normal(rows * width), weight = normal(width), dy = normal(rows * width), dx = normal(rows * width);
        std::vector<float> y(x.size());
        Doubles want(x.size()), back(x.size());
        for (u32 row = 0; row < rows; row++) {
            double squares = 0, along = 0;
            for (u32 at = row * width; at < (row + 1) * width; at++) squares += double(x[at]) * x[at];
            double root = std::sqrt(squares / width + 1e-5);
            for (u32 i = 0, at = row * width; i < width; i++, at++) along += double(dy[at]) * weight[i] * x[at] / root / width;
            for (u32 i = 0, at = row * width; i < width; i++, at++) {
                want[at] = x[at] / root * weight[i];
                back[at] = dx[at] + (double(dy[at]) * weight[i] - x[at] / root * along) / root;
            }
        }
        launch(blocks, 1, BLOCK, [&] { rms_norm(x.data(), weight.data(), y.data(), rows, width, 1e-5f, threads); });
        launch(blocks, 1, BLOCK, [&] { rms_norm_backward(x.data(), weight.data(), dy.data(), dx.data(), rows, width, 1e-5f, threads); });
        check("norm", y, want, 1e-6);
        check("its gradient", dx, back, 1e-6);
    }
}

void codes() {
    const u32 blocks = 7, bytes = 32 * blocks;
    auto pairs = normal(512), scales = normal(blocks);
    std::vector<unsigned char> codes(bytes);
    for (u32 i = 0; i < bytes; i++) codes[i] = i * 37;
    std::vector<u32> out(bytes);
    launch(1, 1, BLOCK, [&] { decode_nf4(codes.data(), scales.data(), pairs.data(), out.data(), bytes); });
    std::vector<float> found;
    Doubles want;
    for (u32 i = 0; i < bytes; i++)
        for (u32 half = 0; half < 2; half++) {
            u32 bits = half ? out[i] & 0xffff0000u : out[i] << 16;
            float value;
            std::memcpy(&value, &bits, 4);
            found.push_back(value);
            // Rounded to eight bits.
            int exponent;
            double fraction = std::frexp(double(pairs[2 * codes[i] + half] * scales[i / 32]), &exponent);
            want.push_back(std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8));
        }
    check("4-bit codes", found, want, 0);
}

void rotations() {
    const u32 tokens = 5, heads = 3, head = 12, half = 4;
    auto x = normal(tokens * heads * head), cosines = normal(9 * half), sines = normal(9 * half);
    std::vector<u32> positions{3, 1, 8, 0, 2};
    Doubles want(x.begin(), x.end());
    for (u32 at = 0; at < x.size(); at++) {
        u32 i = at % head, angle = positions[at / (heads * head)] * half + i % half;
        if (i < half) want[at] = double(x[at]) * cosines[angle] + double(x[at + half]) * sines[angle];
        else if (i < 2 * half) want[at] = double(x[at]) * cosines[angle] - double(x[at - half]) * sines[angle];
    }
    launch(1, 1, BLOCK, [&] { rotate(x.data(), positions.data(), cosines.data(), sines.data(), tokens * heads * half, heads, head, half, -1); });
    check("rotation, backward", x, want, 1e-6);
}

void products() {
    for (u32 rank : {16u, 5u, 24u}) {
        const u32 rows = 11, inputs = 70, outputs = 300;
        auto x = normal(rows * inputs), a = normal(rank * inputs), b = normal(outputs * rank), y = normal(rows * outputs);
        std::vector<float> low(rows * rank);
        Doubles of_rows(low.size()), want(y.begin(), y.end());
        for (u32 row = 0; row < rows; row++)
            for (u32 j = 0; j < rank; j++)
                for (u32 i = 0; i < inputs; i++) of_rows[row * rank + j] += 0.5 * x[row * inputs + i] * a[j * inputs + i];
        launch((rank + 7) / 8, rows, BLOCK, [&] { few_outputs(x.data(), a.data(), low.data(), inputs, rank, 0.5f); });
        check("few outputs", low, of_rows, 1e-6);
        for (u32 row = 0; row < rows; row++)
            for (u32 output = 0; output < outputs; output++)
                for (u32 i = 0; i < rank; i++) want[row * outputs + output] += 2.0 * low[row * rank + i] * b[output * rank + i];
        launch((outputs + BLOCK - 1) / BLOCK, (rows + ROWS - 1) / ROWS, BLOCK, [&] { few_inputs(low.data(), b.data(), y.data(), rows, rank, outputs, 2); });
        check("few inputs", y, want, 1e-6);
    }
}

void logits() {
    const u32 rows = 3, vocabulary = 5003;
    auto values = normal(rows * vocabulary, 2);
    auto row = [&](u32 index) { return &values[index * vocabulary]; };
    std::vector<double> totals(rows);
    for (u32 index = 0; index < rows; index++) {
        double sum = 0;
        for (u32 i = 0; i < vocabulary; i++) sum += std::exp(double(row(index)[i]));
        totals[index] = std::log(sum);
    }
    std::vector<float> temperatures{0, 1, 0.7f}, logprobs(rows);
    for (double number : {0.0, 0.4, 1 - 1e-15}) {
        std::vector<double> draws(rows, number);
        std::vector<u32> tokens(rows);
        launch(rows, 1, ROW, [&] { draw(values.data(), draws.data(), temperatures.data(), tokens.data(), logprobs.data(), vocabulary); });
        Doubles want;
        for (u32 index = 0; index < rows; index++) {
            const float *of = row(index);
            want.push_back(of[tokens[index]] - totals[index]);
            double all = 0, before = 0, most = *std::max_element(of, of + vocabulary);
            auto share = [&](u32 token) { return std::exp((of[token] - most) / temperatures[index]); };
            if (temperatures[index] > 0)
                for (u32 i = 0; i < vocabulary; i++) all += share(i), before += i < tokens[index] ? share(i) : 0;
            bool right = temperatures[index] > 0
                             ? before / all < number + 1e-6 && number - 1e-6 < (before + share(tokens[index])) / all
                             : of[tokens[index]] == most;
            if (!right) fprintf(stderr, "token %u of row %u for %g\n", tokens[index], index, number), exit(1);
        }
        check("log-probability of a draw", logprobs, want, 1e-6);
    }
    std::vector<u32> starts{0, 2, 2, 5}, tokens{7, 9, 3, 3, 5002};
    std::vector<float> slopes{0.5f, -1, 2, 0.25f, -0.125f}, found(5), gradient = values;
    Doubles want, back(values.size());
    for (u32 index = 0; index < rows; index++) {
        double sum = 0;
        for (u32 i = starts[index]; i < starts[index + 1]; i++) want.push_back(row(index)[tokens[i]] - totals[index]), sum += slopes[i];
        for (u32 i = 0; i < vocabulary; i++) back[index * vocabulary + i] = -sum * std::exp(row(index)[i] - totals[index]);
        for (u32 i = starts[index]; i < starts[index + 1]; i++) back[index * vocabulary + tokens[i]] += slopes[i];
    }
    launch(rows, 1, ROW, [&] { log_probabilities(values.data(), starts.data(), tokens.data(), found.data(), vocabulary); });
    launch(rows, 1, ROW, [&] { log_probabilities_backward(gradient.data(), starts.data(), tokens.data(), slopes.data(), vocabulary); });
    check("log-probabilities", found, want, 1e-6);
    check("their gradient", gradient, back, 1e-5);
}

int main() {
    norms();
    codes();
    rotations();
    products();
    logits();
}
