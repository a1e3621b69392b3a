// x * POSITIVE, or x * NEGATIVE if x is negative, in each lane
module fixed_leaky_relu #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 12,
    parameter logic signed [63:0] POSITIVE = 64'sd8,
    parameter logic signed [63:0] NEGATIVE = 64'sd1
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
    logic [LANES*OUT_WIDTH-1:0] result;

    for (genvar i = 0; i < LANES; i++) begin : lane
        logic [IN_WIDTH-1:0] code;
        logic signed [IN_WIDTH:0] x;
        assign code = data_in_0[i*IN_WIDTH +: IN_WIDTH];
        assign x = {IN_SIGNED != 0 && code[IN_WIDTH-1], code};
        assign result[i*OUT_WIDTH +: OUT_WIDTH] = x[IN_WIDTH]
            ? OUT_WIDTH'(x) * OUT_WIDTH'(NEGATIVE) : OUT_WIDTH'(x) * OUT_WIDTH'(POSITIVE);
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(result),
        .data_in_0_valid(data_in_0_valid), .data_in_0_ready(data_in_0_ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
