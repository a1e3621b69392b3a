// min(max(x, LOW), HIGH) in each lane
module fixed_clamp #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 8,
    parameter logic signed [63:0] LOW = 64'sd0,
    parameter logic signed [63:0] HIGH = 64'sd6
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
        fixed_saturate #(
            .IN_WIDTH(IN_WIDTH + 1), .OUT_WIDTH(OUT_WIDTH), .LOW(LOW), .HIGH(HIGH)
        ) bounds (.x(x), .result(result[i*OUT_WIDTH +: OUT_WIDTH]));
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(result),
        .data_in_0_valid(data_in_0_valid), .data_in_0_ready(data_in_0_ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
