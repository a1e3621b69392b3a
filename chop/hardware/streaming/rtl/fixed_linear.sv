// Sums of products of a vector with the rows of a matrix, plus a bias.
//
// The vector is collected while the one before is in use: two halves of a memory, with words of
// GATHER beats. Its words are multiplied MULTIPLIED codes at a time with OUT_LANES rows of the
// matrix, and read again for the next rows. With GROUPS above 1, each part of the vector has rows
// of its own.
module fixed_linear #(
    parameter int IN_LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int WEIGHT_WIDTH = 8,
    parameter int SHIFT = 0,          // of the products, to the grid of the bias
    parameter int OUT_LANES = 1,
    parameter int OUT_WIDTH = 16,
    parameter int GROUPS = 1,
    parameter int BEATS = 1,          // per group
    parameter int GATHER = 1,         // beats per word
    parameter int WORDS = 1,          // per group
    parameter int MULTIPLIED = 1,     // codes at a time
    parameter int SLICES = 1,         // of a word
    parameter int PASSES = 1,         // over the words of a group
    parameter int LEVELS = 0,         // of the adder tree
    parameter int WEIGHT_ADDRESS = 1, // bits of the address of the weights
    parameter int BIAS_ADDRESS = 1
) (
    input  logic clk,
    input  logic rst,
    input  logic [IN_LANES*IN_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic weight_enable,
    output logic [WEIGHT_ADDRESS-1:0] weight_address,
    input  logic [OUT_LANES*MULTIPLIED*WEIGHT_WIDTH-1:0] weight,
    output logic bias_enable,
    output logic [BIAS_ADDRESS-1:0] bias_address,
    input  logic [OUT_LANES*OUT_WIDTH-1:0] bias,
    output logic [OUT_LANES*OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    localparam int BEAT = IN_LANES * IN_WIDTH;
    localparam int WORD = GATHER * BEAT;
    localparam int DEPTH = GROUPS * WORDS;
    localparam int DEPTH_BITS = DEPTH > 1 ? $clog2(DEPTH) : 1;
    localparam int BEAT_BITS = BEATS > 1 ? $clog2(BEATS) : 1;
    localparam int BANK_BITS = GATHER > 1 ? $clog2(GATHER) : 1;
    localparam int GROUP_BITS = GROUPS > 1 ? $clog2(GROUPS) : 1;
    localparam int WORD_BITS = WORDS > 1 ? $clog2(WORDS) : 1;
    localparam int SLICE_BITS = SLICES > 1 ? $clog2(SLICES) : 1;
    localparam int PASS_BITS = PASSES > 1 ? $clog2(PASSES) : 1;
    localparam int ROWS = GROUPS * PASSES;
    localparam int STAGES = 3 + LEVELS;
    localparam int TERMS = 2 ** LEVELS;
    // bits beyond those of the result cannot change it
    localparam int FULL = IN_WIDTH + WEIGHT_WIDTH + 1;
    localparam int PRODUCT = FULL < OUT_WIDTH ? FULL : OUT_WIDTH;

    // collecting a vector

    logic [1:0] full;
    logic write_half;
    logic read_half;
    logic [BEAT_BITS-1:0] beat;
    logic [BANK_BITS-1:0] bank;
    logic [DEPTH_BITS-1:0] write_word;
    logic write;
    logic group_complete;
    logic word_complete;
    logic vector_complete;
    logic vector_done;

    assign data_in_0_ready = !full[write_half];
    assign write = data_in_0_valid && data_in_0_ready;
    assign group_complete = beat == BEAT_BITS'(BEATS - 1);
    assign word_complete = group_complete || bank == BANK_BITS'(GATHER - 1);
    assign vector_complete = group_complete && write_word == DEPTH_BITS'(DEPTH - 1);

    always_ff @(posedge clk) begin
        if (write) begin
            beat <= group_complete ? '0 : beat + 1'b1;
            bank <= word_complete ? '0 : bank + 1'b1;
            if (word_complete) write_word <= vector_complete ? '0 : write_word + 1'b1;
            if (vector_complete) begin
                full[write_half] <= 1'b1;
                write_half <= !write_half;
            end
        end
        if (vector_done) begin
            full[read_half] <= 1'b0;
            read_half <= !read_half;
        end
        if (rst) begin
            full <= '0;
            write_half <= 1'b0;
            read_half <= 1'b0;
            beat <= '0;
            bank <= '0;
            write_word <= '0;
        end
    end

    // reading it, slice by slice

    logic step;
    logic issue;
    logic [SLICE_BITS-1:0] slice;
    logic [WORD_BITS-1:0] word;
    logic [PASS_BITS-1:0] pass;
    logic [GROUP_BITS-1:0] group;
    logic [DEPTH_BITS-1:0] group_base;
    logic [DEPTH_BITS-1:0] read_word;
    logic first;
    logic last_slice;
    logic last_word;
    logic last_pass;
    logic last_group;

    assign issue = full[read_half] && step;
    assign first = slice == '0 && word == '0;
    assign last_slice = slice == SLICE_BITS'(SLICES - 1);
    assign last_word = last_slice && word == WORD_BITS'(WORDS - 1);
    assign last_pass = last_word && pass == PASS_BITS'(PASSES - 1);
    assign last_group = last_pass && group == GROUP_BITS'(GROUPS - 1);
    assign vector_done = issue && last_group;
    assign read_word = group_base + DEPTH_BITS'(word);
    assign weight_enable = step;

    always_ff @(posedge clk) begin
        if (issue) begin
            slice <= last_slice ? '0 : slice + 1'b1;
            if (last_slice) word <= last_word ? '0 : word + 1'b1;
            if (last_word) pass <= last_pass ? '0 : pass + 1'b1;
            if (last_pass) group <= last_group ? '0 : group + 1'b1;
            if (last_pass) group_base <= last_group ? '0 : group_base + DEPTH_BITS'(WORDS);
            weight_address <= last_group ? '0 : weight_address + 1'b1;
        end
        if (rst) begin
            slice <= '0;
            word <= '0;
            pass <= '0;
            group <= '0;
            group_base <= '0;
            weight_address <= '0;
        end
    end

    logic [WORD-1:0] codes;
    logic [SLICE_BITS-1:0] codes_slice;

    for (genvar i = 0; i < GATHER; i++) begin : banks
        logic [BEAT-1:0] memory [0:2**(DEPTH_BITS+1)-1];
        always_ff @(posedge clk) begin
            if (write && bank == BANK_BITS'(i)) memory[{write_half, write_word}] <= data_in_0;
            if (step) codes[i*BEAT +: BEAT] <= memory[{read_half, read_word}];
        end
    end

    always_ff @(posedge clk) if (step) codes_slice <= slice;

    // multiplying and adding; stage 1: words, 2: slices, 3: products, then a stage per level

    logic [STAGES:1] valid;
    logic [STAGES:1] starts;
    logic [STAGES:1] ends;

    always_ff @(posedge clk) begin
        if (step) begin
            valid <= {valid[STAGES-1:1], issue};
            starts <= {starts[STAGES-1:1], first};
            ends <= {ends[STAGES-1:1], last_word};
        end
        if (rst) valid <= '0;
    end

    logic [SLICES*MULTIPLIED*IN_WIDTH-1:0] padded;
    logic [MULTIPLIED*IN_WIDTH-1:0] operands;
    logic [OUT_LANES*MULTIPLIED*WEIGHT_WIDTH-1:0] weights;

    assign padded = (SLICES*MULTIPLIED*IN_WIDTH)'(codes);

    always_ff @(posedge clk) begin
        if (step) begin
            operands <= padded[codes_slice*(MULTIPLIED*IN_WIDTH) +: MULTIPLIED*IN_WIDTH];
            weights <= weight;
        end
    end

    logic [OUT_LANES*OUT_WIDTH-1:0] totals;

    for (genvar o = 0; o < OUT_LANES; o++) begin : lane
        logic [TERMS*OUT_WIDTH-1:0] products;
        logic [OUT_WIDTH-1:0] sum;
        logic [OUT_WIDTH-1:0] accumulator;
        logic [OUT_WIDTH-1:0] previous;
        for (genvar i = 0; i < TERMS; i++) begin : term
            if (i < MULTIPLIED) begin : used
                logic [IN_WIDTH-1:0] code;
                logic signed [IN_WIDTH:0] x;
                logic signed [WEIGHT_WIDTH-1:0] w;
                logic signed [PRODUCT-1:0] product;
                logic unused_bits;
                assign unused_bits = &{x, w};  // of operands wider than the product
                assign code = operands[i*IN_WIDTH +: IN_WIDTH];
                assign x = {IN_SIGNED != 0 && code[IN_WIDTH-1], code};
                assign w = weights[(o*MULTIPLIED+i)*WEIGHT_WIDTH +: WEIGHT_WIDTH];
                assign products[i*OUT_WIDTH +: OUT_WIDTH] = OUT_WIDTH'(product);
                always_ff @(posedge clk) if (step) product <= PRODUCT'(x) * PRODUCT'(w);
            end else begin : unused
                assign products[i*OUT_WIDTH +: OUT_WIDTH] = '0;
            end
        end
        if (LEVELS == 0) begin : single
            assign sum = products;
        end else begin : several
            fixed_adder_tree #(.LEVELS(LEVELS), .WIDTH(OUT_WIDTH)) tree (
                .clk(clk), .enable(step), .terms(products), .sum(sum)
            );
        end
        assign previous = starts[STAGES] ? bias[o*OUT_WIDTH +: OUT_WIDTH] : accumulator;
        assign totals[o*OUT_WIDTH +: OUT_WIDTH] = previous + (sum << SHIFT);
        always_ff @(posedge clk)
            if (step && valid[STAGES]) accumulator <= totals[o*OUT_WIDTH +: OUT_WIDTH];
    end

    // the bias is read one clock before the first sum of its rows is there

    assign bias_enable = step;

    always_ff @(posedge clk) begin
        if (step && valid[STAGES-1] && ends[STAGES-1])
            bias_address <= bias_address == BIAS_ADDRESS'(ROWS - 1) ? '0 : bias_address + 1'b1;
        if (rst) bias_address <= '0;
    end

    logic result_valid;
    logic result_ready;

    assign result_valid = valid[STAGES] && ends[STAGES];
    assign step = !result_valid || result_ready;

    stream_register #(.WIDTH(OUT_LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(totals), .data_in_0_valid(result_valid), .data_in_0_ready(result_ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
