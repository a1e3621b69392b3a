// The words of a memory, again and again
module stream_constant #(
    parameter int WIDTH = 8,
    parameter int PERIOD = 1,
    parameter int VALUE_ADDRESS = 1
) (
    input  logic clk,
    input  logic rst,
    output logic value_enable,
    output logic [VALUE_ADDRESS-1:0] value_address,
    input  logic [WIDTH-1:0] value,
    output logic [WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    logic valid;
    logic ready;

    assign value_enable = !valid || ready;

    always_ff @(posedge clk) begin
        valid <= 1'b1;
        if (value_enable)
            value_address <= value_address == VALUE_ADDRESS'(PERIOD - 1)
                ? '0 : value_address + 1'b1;
        if (rst) begin
            valid <= 1'b0;
            value_address <= '0;
        end
    end

    stream_register #(.WIDTH(WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(value), .data_in_0_valid(valid), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
