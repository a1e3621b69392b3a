// A convolution: the window of each pixel of the result, multiplied with the weights.
module fixed_conv2d #(
    parameter int IN_LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int BEATS = 1,          // per pixel
    parameter int ROWS = 4,
    parameter int COLUMNS = 4,
    parameter int PAD_TOP = 0,
    parameter int PAD_BOTTOM = 0,
    parameter int PAD_LEFT = 0,
    parameter int PAD_RIGHT = 0,
    parameter int KERNEL_ROWS = 3,
    parameter int KERNEL_COLUMNS = 3,
    parameter int STRIDE_ROWS = 1,
    parameter int STRIDE_COLUMNS = 1,
    parameter int DILATION_ROWS = 1,
    parameter int DILATION_COLUMNS = 1,
    parameter int WEIGHT_WIDTH = 8,
    parameter int SHIFT = 0,
    parameter int OUT_LANES = 1,
    parameter int OUT_WIDTH = 16,
    parameter int GROUPS = 1,
    parameter int GATHER = 1,
    parameter int WORDS = 1,
    parameter int MULTIPLIED = 1,
    parameter int SLICES = 9,
    parameter int PASSES = 1,
    parameter int LEVELS = 0,
    parameter int WEIGHT_ADDRESS = 1,
    parameter int BIAS_ADDRESS = 1
) (
    input  logic clk,
    input  logic rst,
    input  logic [IN_LANES*IN_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic weight_enable,
    output logic [WEIGHT_ADDRESS-1:0] weight_address,
    input  logic [OUT_LANES*MULTIPLIED*WEIGHT_WIDTH-1:0] weight,
    output logic bias_enable,
    output logic [BIAS_ADDRESS-1:0] bias_address,
    input  logic [OUT_LANES*OUT_WIDTH-1:0] bias,
    output logic [OUT_LANES*OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    localparam int BITS = IN_LANES * IN_WIDTH;
    localparam int HEIGHT = PAD_TOP + ROWS + PAD_BOTTOM;
    localparam int LENGTH = PAD_LEFT + COLUMNS + PAD_RIGHT;
    localparam int PADDED = PAD_TOP + PAD_BOTTOM + PAD_LEFT + PAD_RIGHT;

    logic [BITS-1:0] padded;
    logic padded_valid;
    logic padded_ready;
    logic [KERNEL_ROWS*BITS-1:0] rows;
    logic rows_valid;
    logic rows_ready;
    logic [KERNEL_COLUMNS*KERNEL_ROWS*BITS-1:0] window;
    logic window_valid;
    logic window_ready;

    if (PADDED == 0) begin : whole
        assign padded = data_in_0;
        assign padded_valid = data_in_0_valid;
        assign data_in_0_ready = padded_ready;
    end else begin : pad
        stream_pad #(
            .LANES(IN_LANES), .WIDTH(IN_WIDTH), .BEATS(BEATS), .ROWS(ROWS), .COLUMNS(COLUMNS),
            .TOP(PAD_TOP), .BOTTOM(PAD_BOTTOM), .LEFT(PAD_LEFT), .RIGHT(PAD_RIGHT),
            .FIRST_ROW((KERNEL_ROWS - 1) * DILATION_ROWS),
            .FIRST_COLUMN((KERNEL_COLUMNS - 1) * DILATION_COLUMNS)
        ) pad (
            .clk(clk), .rst(rst),
            .data_in_0(data_in_0),
            .data_in_0_valid(data_in_0_valid), .data_in_0_ready(data_in_0_ready),
            .data_out_0(padded),
            .data_out_0_valid(padded_valid), .data_out_0_ready(padded_ready)
        );
    end

    if (KERNEL_ROWS == 1 && STRIDE_ROWS == 1) begin : row
        assign rows = padded;
        assign rows_valid = padded_valid;
        assign padded_ready = rows_ready;
    end else begin : keep_rows
        stream_taps #(
            .BITS(BITS), .INNER(LENGTH * BEATS), .OUTER(HEIGHT),
            .TAPS(KERNEL_ROWS), .DILATION(DILATION_ROWS), .STRIDE(STRIDE_ROWS)
        ) row_taps (
            .clk(clk), .rst(rst),
            .data_in_0(padded), .data_in_0_valid(padded_valid), .data_in_0_ready(padded_ready),
            .data_out_0(rows), .data_out_0_valid(rows_valid), .data_out_0_ready(rows_ready)
        );
    end

    if (KERNEL_COLUMNS == 1 && STRIDE_COLUMNS == 1) begin : column
        assign window = rows;
        assign window_valid = rows_valid;
        assign rows_ready = window_ready;
    end else begin : keep_columns
        stream_taps #(
            .BITS(KERNEL_ROWS * BITS), .INNER(BEATS), .OUTER(LENGTH),
            .TAPS(KERNEL_COLUMNS), .DILATION(DILATION_COLUMNS), .STRIDE(STRIDE_COLUMNS)
        ) column_taps (
            .clk(clk), .rst(rst),
            .data_in_0(rows), .data_in_0_valid(rows_valid), .data_in_0_ready(rows_ready),
            .data_out_0(window),
            .data_out_0_valid(window_valid), .data_out_0_ready(window_ready)
        );
    end

    fixed_linear #(
        .IN_LANES(KERNEL_COLUMNS * KERNEL_ROWS * IN_LANES),
        .IN_WIDTH(IN_WIDTH), .IN_SIGNED(IN_SIGNED), .WEIGHT_WIDTH(WEIGHT_WIDTH),
        .SHIFT(SHIFT), .OUT_LANES(OUT_LANES), .OUT_WIDTH(OUT_WIDTH),
        .GROUPS(GROUPS), .BEATS(BEATS / GROUPS), .GATHER(GATHER), .WORDS(WORDS),
        .MULTIPLIED(MULTIPLIED), .SLICES(SLICES), .PASSES(PASSES), .LEVELS(LEVELS),
        .WEIGHT_ADDRESS(WEIGHT_ADDRESS), .BIAS_ADDRESS(BIAS_ADDRESS)
    ) multiply (
        .clk(clk), .rst(rst),
        .data_in_0(window), .data_in_0_valid(window_valid), .data_in_0_ready(window_ready),
        .weight_enable(weight_enable), .weight_address(weight_address), .weight(weight),
        .bias_enable(bias_enable), .bias_address(bias_address), .bias(bias),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
