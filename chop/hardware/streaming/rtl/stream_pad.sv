// An image with TOP, BOTTOM, LEFT and RIGHT rows and columns of FILL around it, row by row.
//
// The padding before an image is sent ahead of it, but not the pixel at FIRST_ROW, FIRST_COLUMN,
// which completes the first window: a window of padding alone waits for its image, too.
module stream_pad #(
    parameter int LANES = 1,
    parameter int WIDTH = 8,
    parameter int BEATS = 1,          // per pixel
    parameter int ROWS = 4,
    parameter int COLUMNS = 4,
    parameter int TOP = 1,
    parameter int BOTTOM = 1,
    parameter int LEFT = 1,
    parameter int RIGHT = 1,
    parameter int FIRST_ROW = 0,
    parameter int FIRST_COLUMN = 0,
    parameter logic [WIDTH-1:0] FILL = '0
) (
    input  logic clk,
    input  logic rst,
    input  logic [LANES*WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [LANES*WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    localparam int HEIGHT = TOP + ROWS + BOTTOM;
    localparam int LENGTH = LEFT + COLUMNS + RIGHT;
    localparam int ROW_BITS = $clog2(HEIGHT + 1);
    localparam int COLUMN_BITS = $clog2(LENGTH + 1);
    localparam int BEAT_BITS = $clog2(BEATS + 1);
    localparam logic IS_EARLY = FIRST_ROW * LENGTH + FIRST_COLUMN < TOP * LENGTH + LEFT;

    logic [ROW_BITS-1:0] row;
    logic [COLUMN_BITS-1:0] column;
    logic [BEAT_BITS-1:0] beat;
    logic inside_rows;
    logic inside_columns;
    logic in_image;
    logic waits;
    logic last_beat;
    logic last_column;
    logic valid;
    logic ready;

    // as differences, so that no bound is beyond the range of a counter
    assign inside_rows = row - ROW_BITS'(TOP) < ROW_BITS'(ROWS);
    assign inside_columns = column - COLUMN_BITS'(LEFT) < COLUMN_BITS'(COLUMNS);
    assign in_image = inside_rows && inside_columns;
    assign last_beat = beat == BEAT_BITS'(BEATS - 1);
    assign last_column = last_beat && column == COLUMN_BITS'(LENGTH - 1);
    assign waits = IS_EARLY && row == ROW_BITS'(FIRST_ROW) && column == COLUMN_BITS'(FIRST_COLUMN);
    assign valid = !(in_image || waits) || data_in_0_valid;
    assign data_in_0_ready = in_image && ready;

    always_ff @(posedge clk) begin
        if (valid && ready) begin
            beat <= last_beat ? '0 : beat + 1'b1;
            if (last_beat) column <= last_column ? '0 : column + 1'b1;
            if (last_column) row <= row == ROW_BITS'(HEIGHT - 1) ? '0 : row + 1'b1;
        end
        if (rst) begin
            beat <= '0;
            column <= '0;
            row <= '0;
        end
    end

    stream_register #(.WIDTH(LANES * WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(in_image ? data_in_0 : {LANES{FILL}}),
        .data_in_0_valid(valid), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
