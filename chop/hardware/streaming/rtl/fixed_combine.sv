// x + y, x - y or x * y in each lane, when both streams have a beat
module fixed_combine #(
    parameter int LANES = 1,
    parameter int IN_0_WIDTH = 8,
    parameter int IN_0_SIGNED = 1,
    parameter int IN_1_WIDTH = 8,
    parameter int IN_1_SIGNED = 1,
    parameter int OUT_WIDTH = 9,
    parameter int OPERATION = 0       // 0: sum, 1: difference, 2: product
) (
    input  logic clk,
    input  logic rst,
    input  logic [LANES*IN_0_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    input  logic [LANES*IN_1_WIDTH-1:0] data_in_1,
    input  logic data_in_1_valid,
    output logic data_in_1_ready,
    output logic [LANES*OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    logic [LANES*OUT_WIDTH-1:0] result;
    logic valid;
    logic ready;

    assign valid = data_in_0_valid && data_in_1_valid;
    assign data_in_0_ready = ready && data_in_1_valid;
    assign data_in_1_ready = ready && data_in_0_valid;

    for (genvar i = 0; i < LANES; i++) begin : lane
        logic [IN_0_WIDTH-1:0] code_0;
        logic [IN_1_WIDTH-1:0] code_1;
        logic signed [OUT_WIDTH-1:0] x;
        logic signed [OUT_WIDTH-1:0] y;
        assign code_0 = data_in_0[i*IN_0_WIDTH +: IN_0_WIDTH];
        assign code_1 = data_in_1[i*IN_1_WIDTH +: IN_1_WIDTH];
        assign x = OUT_WIDTH'($signed({IN_0_SIGNED != 0 && code_0[IN_0_WIDTH-1], code_0}));
        assign y = OUT_WIDTH'($signed({IN_1_SIGNED != 0 && code_1[IN_1_WIDTH-1], code_1}));
        if (OPERATION == 0) begin : sum
            assign result[i*OUT_WIDTH +: OUT_WIDTH] = x + y;
        end else if (OPERATION == 1) begin : difference
            assign result[i*OUT_WIDTH +: OUT_WIDTH] = x - y;
        end else begin : product
            assign result[i*OUT_WIDTH +: OUT_WIDTH] = x * y;
        end
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(result), .data_in_0_valid(valid), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
