// The entry of a table for each lane; the first is that of the code LOWEST.
module fixed_lookup #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 8,
    parameter logic signed [63:0] LOWEST = -64'sd128,
    parameter int ENTRY_ADDRESS = 8
) (
    input  logic clk,
    input  logic rst,
    input  logic [LANES*IN_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic entry_enable,
    output logic [LANES*ENTRY_ADDRESS-1:0] entry_address,
    input  logic [LANES*OUT_WIDTH-1:0] entry,
    output logic [LANES*OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    logic step;
    logic valid;
    logic ready;

    assign step = !valid || ready;
    assign data_in_0_ready = step;
    assign entry_enable = step;

    for (genvar i = 0; i < LANES; i++) begin : lane
        logic [IN_WIDTH-1:0] code;
        assign code = data_in_0[i*IN_WIDTH +: IN_WIDTH];
        assign entry_address[i*ENTRY_ADDRESS +: ENTRY_ADDRESS]
            = ENTRY_ADDRESS'($signed({IN_SIGNED != 0 && code[IN_WIDTH-1], code}))
            - ENTRY_ADDRESS'(LOWEST);
    end

    always_ff @(posedge clk) begin
        if (step) valid <= data_in_0_valid;
        if (rst) valid <= 1'b0;
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(entry), .data_in_0_valid(valid), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
