// max(x, 0) in each lane
module fixed_relu #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 8
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
        logic negative;
        logic [IN_WIDTH-1:0] x;
        assign x = data_in_0[i*IN_WIDTH +: IN_WIDTH];
        assign negative = IN_SIGNED != 0 && x[IN_WIDTH-1];
        assign result[i*OUT_WIDTH +: OUT_WIDTH] = negative ? '0 : OUT_WIDTH'(x);
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(result),
        .data_in_0_valid(data_in_0_valid), .data_in_0_ready(data_in_0_ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
