// The first place of the largest code of a vector of SIZE codes
module fixed_argmax #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 4,
    parameter int SIZE = 10,
    parameter int BEATS = 10
) (
    input  logic clk,
    input  logic rst,
    input  logic [LANES*IN_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    localparam int PLACE_BITS = $clog2(SIZE + LANES + 1);
    localparam int BEAT_BITS = BEATS > 1 ? $clog2(BEATS) : 1;

    // entry i is the best of what came before and of the lanes below i
    logic [(LANES+1)*(IN_WIDTH+1)-1:0] codes;
    logic [(LANES+1)*PLACE_BITS-1:0] places;
    logic signed [IN_WIDTH:0] best;
    logic [PLACE_BITS-1:0] best_place;
    logic [PLACE_BITS-1:0] base;
    logic [BEAT_BITS-1:0] beat;
    logic last;
    logic done;
    logic step;
    logic ready;

    assign step = !done || ready;
    assign data_in_0_ready = step;
    assign last = beat == BEAT_BITS'(BEATS - 1);
    assign codes[IN_WIDTH:0] = best;
    assign places[PLACE_BITS-1:0] = best_place;

    for (genvar i = 0; i < LANES; i++) begin : lane
        logic [IN_WIDTH-1:0] code;
        logic signed [IN_WIDTH:0] x;
        logic signed [IN_WIDTH:0] y;
        logic wins;
        assign code = data_in_0[i*IN_WIDTH +: IN_WIDTH];
        assign x = {IN_SIGNED != 0 && code[IN_WIDTH-1], code};
        assign y = codes[i*(IN_WIDTH+1) +: IN_WIDTH+1];
        if (i == 0) begin : first
            assign wins = x > y || beat == '0;
        end else begin : other
            // lanes after the last code do not count
            assign wins = x > y && base + PLACE_BITS'(i) < PLACE_BITS'(SIZE);
        end
        assign codes[(i+1)*(IN_WIDTH+1) +: IN_WIDTH+1] = wins ? x : y;
        assign places[(i+1)*PLACE_BITS +: PLACE_BITS]
            = wins ? base + PLACE_BITS'(i) : places[i*PLACE_BITS +: PLACE_BITS];
    end

    always_ff @(posedge clk) begin
        if (step) begin
            done <= data_in_0_valid && last;
            if (data_in_0_valid) begin
                best <= codes[LANES*(IN_WIDTH+1) +: IN_WIDTH+1];
                best_place <= places[LANES*PLACE_BITS +: PLACE_BITS];
                beat <= last ? '0 : beat + 1'b1;
                base <= last ? '0 : base + PLACE_BITS'(LANES);
            end
        end
        if (rst) begin
            done <= 1'b0;
            beat <= '0;
            base <= '0;
        end
    end

    stream_register #(.WIDTH(OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(OUT_WIDTH'(best_place)), .data_in_0_valid(done), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
