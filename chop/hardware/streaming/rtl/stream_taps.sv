// Lines of INNER beats: each beat together with those above it in the lines before. The lines are
// kept in a memory with one word per place in a line, the oldest in the lowest bits. A result has
// TAPS beats, DILATION lines apart; there is one for every STRIDE-th line.
module stream_taps #(
    parameter int BITS = 8,           // of a beat
    parameter int INNER = 4,
    parameter int OUTER = 4,          // lines of an image
    parameter int TAPS = 3,
    parameter int DILATION = 1,
    parameter int STRIDE = 1
) (
    input  logic clk,
    input  logic rst,
    input  logic [BITS-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [TAPS*BITS-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    localparam int LINES = (TAPS - 1) * DILATION;  // that are kept
    localparam int INNER_BITS = INNER > 1 ? $clog2(INNER) : 1;
    localparam int OUTER_BITS = $clog2(OUTER + 1);
    localparam int PHASE_BITS = STRIDE > 1 ? $clog2(STRIDE) : 1;

    logic [INNER_BITS-1:0] inner;
    logic [OUTER_BITS-1:0] outer;
    logic [PHASE_BITS-1:0] phase;
    logic accept;
    logic last_inner;
    logic last_outer;
    logic enough;

    logic [BITS-1:0] beat;
    logic beat_valid;
    logic beat_wanted;
    logic [(LINES+1)*BITS-1:0] lines;
    logic [TAPS*BITS-1:0] taps;
    logic step;
    logic ready;

    assign step = !(beat_valid && beat_wanted) || ready;
    assign data_in_0_ready = step;
    assign accept = data_in_0_valid && step;
    assign last_inner = inner == INNER_BITS'(INNER - 1);
    assign last_outer = last_inner && outer == OUTER_BITS'(OUTER - 1);
    assign enough = outer > OUTER_BITS'(LINES) || outer == OUTER_BITS'(LINES);

    always_ff @(posedge clk) begin
        if (accept) begin
            inner <= last_inner ? '0 : inner + 1'b1;
            if (last_inner) begin
                outer <= last_outer ? '0 : outer + 1'b1;
                if (last_outer || !enough || phase == PHASE_BITS'(STRIDE - 1)) phase <= '0;
                else phase <= phase + 1'b1;
            end
        end
        if (step) begin
            beat <= data_in_0;
            beat_valid <= accept;
            beat_wanted <= enough && phase == '0;
        end
        if (rst) begin
            inner <= '0;
            outer <= '0;
            phase <= '0;
            beat_valid <= 1'b0;
        end
    end

    if (LINES == 0) begin : none
        assign lines = beat;
    end else if (INNER == 1) begin : registers
        logic [LINES*BITS-1:0] history;
        assign lines = {beat, history};
        always_ff @(posedge clk) if (step && beat_valid) history <= lines[BITS +: LINES*BITS];
    end else begin : kept
        logic [LINES*BITS-1:0] memory [0:INNER-1];
        logic [LINES*BITS-1:0] history;
        logic [INNER_BITS-1:0] place;
        assign lines = {beat, history};
        always_ff @(posedge clk) begin
            if (step && beat_valid) memory[place] <= lines[BITS +: LINES*BITS];
            if (accept) begin
                history <= memory[inner];
                place <= inner;
            end
        end
    end

    for (genvar i = 0; i < TAPS; i++) begin : tap
        assign taps[i*BITS +: BITS] = lines[i*DILATION*BITS +: BITS];
    end

    stream_register #(.WIDTH(TAPS * BITS)) register (
        .clk(clk), .rst(rst),
        .data_in_0(taps), .data_in_0_valid(beat_valid && beat_wanted), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
