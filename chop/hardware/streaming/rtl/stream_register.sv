// A register between two components: valid, ready and data come from flip-flops on both sides.
// It keeps a second beat for the clock cycle in which the sender does not know yet of a stall.
module stream_register #(
    parameter int WIDTH = 8
) (
    input  logic clk,
    input  logic rst,
    input  logic [WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    logic [WIDTH-1:0] spare;
    logic spare_valid;

    assign data_in_0_ready = !spare_valid;

    always_ff @(posedge clk) begin
        if (data_out_0_ready || !data_out_0_valid) begin
            data_out_0 <= spare_valid ? spare : data_in_0;
            data_out_0_valid <= spare_valid || data_in_0_valid;
            spare_valid <= 1'b0;
        end else if (data_in_0_valid && !spare_valid) begin
            spare_valid <= 1'b1;
        end
        if (!spare_valid) spare <= data_in_0;
        if (rst) begin
            data_out_0_valid <= 1'b0;
            spare_valid <= 1'b0;
        end
    end
endmodule
