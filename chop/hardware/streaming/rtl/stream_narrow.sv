// Beats of PARTS · WIDTH bits as PARTS beats of WIDTH bits.
module stream_narrow #(
    parameter int WIDTH = 8,
    parameter int PARTS = 2
) (
    input  logic clk,
    input  logic rst,
    input  logic [PARTS*WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    localparam int COUNT_BITS = $clog2(PARTS + 1);

    logic [PARTS*WIDTH-1:0] rest;
    logic [COUNT_BITS-1:0] count;

    assign data_in_0_ready = count == '0 || (count == COUNT_BITS'(1) && data_out_0_ready);
    assign data_out_0_valid = count != '0;
    assign data_out_0 = rest[WIDTH-1:0];

    always_ff @(posedge clk) begin
        if (data_in_0_valid && data_in_0_ready) begin
            rest <= data_in_0;
            count <= COUNT_BITS'(PARTS);
        end else if (data_out_0_valid && data_out_0_ready) begin
            rest <= rest >> WIDTH;
            count <= count - 1'b1;
        end
        if (rst) count <= '0;
    end
endmodule
