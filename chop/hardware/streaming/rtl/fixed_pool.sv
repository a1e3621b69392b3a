// The largest code of each window, or the sum of its codes.
module fixed_pool #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 8,
    parameter int IS_SUM = 0,
    parameter int BEATS = 1,          // per pixel
    parameter int ROWS = 4,
    parameter int COLUMNS = 4,
    parameter int PAD_TOP = 0,
    parameter int PAD_BOTTOM = 0,
    parameter int PAD_LEFT = 0,
    parameter int PAD_RIGHT = 0,
    parameter int KERNEL_ROWS = 2,
    parameter int KERNEL_COLUMNS = 2,
    parameter int STRIDE_ROWS = 2,
    parameter int STRIDE_COLUMNS = 2,
    parameter int DILATION_ROWS = 1,
    parameter int DILATION_COLUMNS = 1
) (
    input  logic clk,
    input  logic rst,
    input  logic [LANES*IN_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [LANES*OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    localparam int WIDTH = IN_WIDTH > OUT_WIDTH ? IN_WIDTH : OUT_WIDTH;
    localparam int BITS = LANES * WIDTH;
    localparam int HEIGHT = PAD_TOP + ROWS + PAD_BOTTOM;
    localparam int LENGTH = PAD_LEFT + COLUMNS + PAD_RIGHT;
    // padding never wins, and adds nothing
    localparam int LEAST = IN_SIGNED != 0 && IS_SUM == 0 ? 1 : 0;

    logic [LANES*IN_WIDTH-1:0] padded;
    logic padded_valid;
    logic padded_ready;
    logic [BITS-1:0] wide;
    logic [KERNEL_ROWS*BITS-1:0] rows;
    logic rows_valid;
    logic rows_ready;
    logic [BITS-1:0] column;
    logic [KERNEL_COLUMNS*BITS-1:0] window;
    logic window_valid;
    logic window_ready;
    logic [BITS-1:0] result;
    logic [LANES*OUT_WIDTH-1:0] narrow;

    stream_pad #(
        .LANES(LANES), .WIDTH(IN_WIDTH), .BEATS(BEATS), .ROWS(ROWS), .COLUMNS(COLUMNS),
        .TOP(PAD_TOP), .BOTTOM(PAD_BOTTOM), .LEFT(PAD_LEFT), .RIGHT(PAD_RIGHT),
        .FIRST_ROW((KERNEL_ROWS - 1) * DILATION_ROWS),
        .FIRST_COLUMN((KERNEL_COLUMNS - 1) * DILATION_COLUMNS),
        .FILL(IN_WIDTH'(LEAST) << (IN_WIDTH - 1))
    ) pad (
        .clk(clk), .rst(rst),
        .data_in_0(data_in_0),
        .data_in_0_valid(data_in_0_valid), .data_in_0_ready(data_in_0_ready),
        .data_out_0(padded), .data_out_0_valid(padded_valid), .data_out_0_ready(padded_ready)
    );

    for (genvar i = 0; i < LANES; i++) begin : widen
        logic [IN_WIDTH-1:0] code;
        assign code = padded[i*IN_WIDTH +: IN_WIDTH];
        if (IN_SIGNED != 0) begin : extended
            assign wide[i*WIDTH +: WIDTH] = WIDTH'($signed(code));
        end else begin : filled
            assign wide[i*WIDTH +: WIDTH] = WIDTH'(code);
        end
    end

    stream_taps #(
        .BITS(BITS), .INNER(LENGTH * BEATS), .OUTER(HEIGHT),
        .TAPS(KERNEL_ROWS), .DILATION(DILATION_ROWS), .STRIDE(STRIDE_ROWS)
    ) row_taps (
        .clk(clk), .rst(rst),
        .data_in_0(wide), .data_in_0_valid(padded_valid), .data_in_0_ready(padded_ready),
        .data_out_0(rows), .data_out_0_valid(rows_valid), .data_out_0_ready(rows_ready)
    );

    fixed_reduce #(
        .LANES(LANES), .WIDTH(WIDTH), .TERMS(KERNEL_ROWS), .IS_SIGNED(IN_SIGNED), .IS_SUM(IS_SUM)
    ) reduce_rows (.terms(rows), .result(column));

    stream_taps #(
        .BITS(BITS), .INNER(BEATS), .OUTER(LENGTH),
        .TAPS(KERNEL_COLUMNS), .DILATION(DILATION_COLUMNS), .STRIDE(STRIDE_COLUMNS)
    ) column_taps (
        .clk(clk), .rst(rst),
        .data_in_0(column), .data_in_0_valid(rows_valid), .data_in_0_ready(rows_ready),
        .data_out_0(window), .data_out_0_valid(window_valid), .data_out_0_ready(window_ready)
    );

    fixed_reduce #(
        .LANES(LANES), .WIDTH(WIDTH), .TERMS(KERNEL_COLUMNS),
        .IS_SIGNED(IN_SIGNED), .IS_SUM(IS_SUM)
    ) reduce_columns (.terms(window), .result(result));

    for (genvar i = 0; i < LANES; i++) begin : lane
        assign narrow[i*OUT_WIDTH +: OUT_WIDTH] = OUT_WIDTH'(result[i*WIDTH +: WIDTH]);
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(narrow), .data_in_0_valid(window_valid), .data_in_0_ready(window_ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
