// The codes of a sample in another order, one per beat; place has the position of each. A sample
// is written into one half of the memory while the one before is read from the other.
module stream_reorder #(
    parameter int WIDTH = 8,
    parameter int IN_SIZE = 4,        // beats of a sample
    parameter int OUT_SIZE = 4,
    parameter int ADDRESS_WIDTH = 2,  // of IN_SIZE
    parameter int PLACE_ADDRESS = 2   // of OUT_SIZE
) (
    input  logic clk,
    input  logic rst,
    input  logic [WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic place_enable,
    output logic [PLACE_ADDRESS-1:0] place_address,
    input  logic [ADDRESS_WIDTH-1:0] place,
    output logic [WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    logic [WIDTH-1:0] memory [0:2**(ADDRESS_WIDTH+1)-1];
    logic [1:0] full;
    logic write_half;
    logic read_half;
    logic place_half;
    logic place_valid;
    logic place_last;
    logic [ADDRESS_WIDTH-1:0] position;
    logic write;
    logic issue;
    logic step;
    logic [WIDTH-1:0] code;
    logic code_valid;
    logic code_ready;

    assign data_in_0_ready = !full[write_half];
    assign write = data_in_0_valid && data_in_0_ready;
    assign step = !code_valid || code_ready;
    assign issue = full[read_half] && step;
    assign place_enable = step;

    always_ff @(posedge clk) begin
        if (write) memory[{write_half, position}] <= data_in_0;
        if (step) code <= memory[{place_half, place}];
    end

    always_ff @(posedge clk) begin
        if (write) begin
            position <= position == ADDRESS_WIDTH'(IN_SIZE - 1) ? '0 : position + 1'b1;
            if (position == ADDRESS_WIDTH'(IN_SIZE - 1)) begin
                full[write_half] <= 1'b1;
                write_half <= !write_half;
            end
        end
        if (step) begin
            place_valid <= issue;
            place_half <= read_half;
            place_last <= place_address == PLACE_ADDRESS'(OUT_SIZE - 1);
            code_valid <= place_valid;
        end
        if (issue) begin
            place_address <= place_address == PLACE_ADDRESS'(OUT_SIZE - 1)
                ? '0 : place_address + 1'b1;
            if (place_address == PLACE_ADDRESS'(OUT_SIZE - 1)) read_half <= !read_half;
        end
        if (step && place_valid && place_last) full[place_half] <= 1'b0;
        if (rst) begin
            full <= '0;
            write_half <= 1'b0;
            read_half <= 1'b0;
            position <= '0;
            place_address <= '0;
            place_valid <= 1'b0;
            code_valid <= 1'b0;
        end
    end

    stream_register #(.WIDTH(WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(code), .data_in_0_valid(code_valid), .data_in_0_ready(code_ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
