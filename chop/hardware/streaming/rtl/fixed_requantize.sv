// x / 2^SHIFT in each lane, rounded, and brought into the range of the result
module fixed_requantize #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 16,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 8,
    parameter int RIGHT = 0,          // bits that are rounded away
    parameter int LEFT = 0,           // or zeros that are appended
    parameter int ROUNDING = 2,       // 0: down, 1: ties up, 2: ties to even
    parameter int WRAPS = 0,          // or saturates at
    parameter logic signed [63:0] LOW = -64'sd128,
    parameter logic signed [63:0] HIGH = 64'sd127
) (
    input  logic clk,
    input  logic rst,
    input  logic [LANES*IN_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [LANES*OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    // a sign for unsigned codes, and bits for the carry of the rounding
    localparam int FULL = IN_WIDTH + LEFT + 4;
    localparam int WIDE = FULL > OUT_WIDTH + 2 ? FULL : OUT_WIDTH + 2;

    logic [LANES*OUT_WIDTH-1:0] result;

    for (genvar i = 0; i < LANES; i++) begin : lane
        logic signed [WIDE-1:0] x;
        logic signed [WIDE-1:0] rounded;
        logic [IN_WIDTH-1:0] code;
        assign code = data_in_0[i*IN_WIDTH +: IN_WIDTH];
        assign x = WIDE'($signed({IN_SIGNED != 0 && code[IN_WIDTH-1], code})) <<< LEFT;
        if (RIGHT == 0) begin : whole
            assign rounded = x;
        end else begin : round
            logic signed [WIDE-1:0] half;
            if (ROUNDING == 0) begin : down
                assign half = '0;
            end else if (ROUNDING == 1) begin : up
                assign half = WIDE'(1) <<< (RIGHT - 1);
            end else begin : even
                assign half = (WIDE'(1) <<< (RIGHT - 1)) - WIDE'(1) + WIDE'(x[RIGHT]);
            end
            assign rounded = (x + half) >>> RIGHT;
        end
        if (WRAPS != 0) begin : wrap
            logic unused_bits;
            assign unused_bits = &rounded;
            assign result[i*OUT_WIDTH +: OUT_WIDTH] = OUT_WIDTH'(rounded);
        end else begin : saturate
            fixed_saturate #(
                .IN_WIDTH(WIDE), .OUT_WIDTH(OUT_WIDTH), .LOW(LOW), .HIGH(HIGH)
            ) bounds (.x(rounded), .result(result[i*OUT_WIDTH +: OUT_WIDTH]));
        end
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(result),
        .data_in_0_valid(data_in_0_valid), .data_in_0_ready(data_in_0_ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
