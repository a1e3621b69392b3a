// One stream to several receivers, each at its own pace; the next beat follows when all have it.
module stream_fork #(
    parameter int WIDTH = 8,
    parameter int COUNT = 2
) (
    input  logic clk,
    input  logic rst,
    input  logic [WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [COUNT*WIDTH-1:0] data_out_0,
    output logic [COUNT-1:0] data_out_0_valid,
    input  logic [COUNT-1:0] data_out_0_ready
);
    logic [COUNT-1:0] taken;
    logic [COUNT-1:0] received;

    assign received = taken | data_out_0_ready;
    assign data_in_0_ready = &received;
    assign data_out_0 = {COUNT{data_in_0}};
    assign data_out_0_valid = {COUNT{data_in_0_valid}} & ~taken;

    always_ff @(posedge clk) begin
        if (data_in_0_valid) taken <= data_in_0_ready ? '0 : received;
        if (rst) taken <= '0;
    end
endmodule
