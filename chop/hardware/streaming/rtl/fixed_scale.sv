// x * multiplier + offset in each lane; both are read from memories with one word per beat of a
// period, such as the beats of a pixel.
module fixed_scale #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 24,
    parameter int MULTIPLIER_WIDTH = 16,
    parameter int PERIOD = 1,
    parameter int MULTIPLIER_ADDRESS = 1,
    parameter int OFFSET_ADDRESS = 1
) (
    input  logic clk,
    input  logic rst,
    input  logic [LANES*IN_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic multiplier_enable,
    output logic [MULTIPLIER_ADDRESS-1:0] multiplier_address,
    input  logic [LANES*MULTIPLIER_WIDTH-1:0] multiplier,
    output logic offset_enable,
    output logic [OFFSET_ADDRESS-1:0] offset_address,
    input  logic [LANES*OUT_WIDTH-1:0] offset,
    output logic [LANES*OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    // stage 1: numbers of the memories, 2: products
    logic [2:1] valid;
    logic [LANES*IN_WIDTH-1:0] codes;
    logic [LANES*OUT_WIDTH-1:0] added;
    logic [LANES*OUT_WIDTH-1:0] result;
    logic step;
    logic ready;

    assign step = !valid[2] || ready;
    assign data_in_0_ready = step;
    assign multiplier_enable = step;
    assign offset_enable = step;
    assign offset_address = OFFSET_ADDRESS'(multiplier_address);

    always_ff @(posedge clk) begin
        if (step) begin
            valid <= {valid[1], data_in_0_valid};
            codes <= data_in_0;
            added <= offset;
            if (data_in_0_valid)
                multiplier_address <= multiplier_address == MULTIPLIER_ADDRESS'(PERIOD - 1)
                    ? '0 : multiplier_address + 1'b1;
        end
        if (rst) begin
            valid <= '0;
            multiplier_address <= '0;
        end
    end

    for (genvar i = 0; i < LANES; i++) begin : lane
        logic [IN_WIDTH-1:0] code;
        logic signed [IN_WIDTH:0] x;
        logic signed [MULTIPLIER_WIDTH-1:0] m;
        logic signed [OUT_WIDTH-1:0] product;
        assign code = codes[i*IN_WIDTH +: IN_WIDTH];
        assign x = {IN_SIGNED != 0 && code[IN_WIDTH-1], code};
        assign m = multiplier[i*MULTIPLIER_WIDTH +: MULTIPLIER_WIDTH];
        always_ff @(posedge clk) if (step) product <= OUT_WIDTH'(x) * OUT_WIDTH'(m);
        assign result[i*OUT_WIDTH +: OUT_WIDTH] = product + added[i*OUT_WIDTH +: OUT_WIDTH];
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(result), .data_in_0_valid(valid[2]), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
