// A queue of DEPTH beats, for the branch that waits until the other one has its first results.
module stream_fifo #(
    parameter int WIDTH = 8,
    parameter int DEPTH = 4,
    parameter int ADDRESS_WIDTH = 2
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
    logic [WIDTH-1:0] queue [0:DEPTH-1];
    logic [ADDRESS_WIDTH-1:0] head;
    logic [ADDRESS_WIDTH-1:0] tail;
    logic [ADDRESS_WIDTH:0] count;
    logic write;
    logic read;

    assign data_in_0_ready = count != (ADDRESS_WIDTH + 1)'(DEPTH);
    assign write = data_in_0_valid && data_in_0_ready;
    assign read = count != '0 && (data_out_0_ready || !data_out_0_valid);

    always_ff @(posedge clk) begin
        if (write) queue[tail] <= data_in_0;
        if (read) data_out_0 <= queue[head];
    end

    always_ff @(posedge clk) begin
        if (write) tail <= tail == ADDRESS_WIDTH'(DEPTH - 1) ? '0 : tail + 1'b1;
        if (read) head <= head == ADDRESS_WIDTH'(DEPTH - 1) ? '0 : head + 1'b1;
        if (write && !read) count <= count + 1'b1;
        if (read && !write) count <= count - 1'b1;
        if (data_out_0_ready || !data_out_0_valid) data_out_0_valid <= read;
        if (rst) begin
            head <= '0;
            tail <= '0;
            count <= '0;
            data_out_0_valid <= 1'b0;
        end
    end
endmodule
