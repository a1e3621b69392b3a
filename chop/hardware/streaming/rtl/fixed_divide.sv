// x * 2^LEFT / (DIVISOR / 2) in each lane, rounded.
//
// 2 x * 2^LEFT, plus half of the divisor unless rounding is down, is raised by 2^RAISED divisors so
// that it is positive; its product with RECIPROCAL, shifted by SHIFT, is the exact quotient.
module fixed_divide #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 8,
    parameter int LEFT = 0,
    parameter int ROUNDING = 2,       // 0: down, 1: ties up, 2: ties to even
    parameter logic [127:0] DIVISOR = 128'd6,
    parameter logic [127:0] RECIPROCAL = 128'd1,
    parameter int RAISED = 8,
    parameter int NUMBER = 16,        // bits of the raised number
    parameter int FACTOR = 16,        // bits of the reciprocal
    parameter int SHIFT = 20
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
    localparam int TOTAL = NUMBER + FACTOR;
    localparam logic [NUMBER-1:0] OFFSET
        = (NUMBER'(DIVISOR) << RAISED) + (ROUNDING == 0 ? '0 : NUMBER'(DIVISOR >> 1));

    // stage 1: raised numbers, 2: products, 3: quotients
    logic [3:1] valid;
    logic [LANES*OUT_WIDTH-1:0] result;
    logic step;
    logic ready;

    assign step = !valid[3] || ready;
    assign data_in_0_ready = step;

    always_ff @(posedge clk) begin
        if (step) valid <= {valid[2:1], data_in_0_valid};
        if (rst) valid <= '0;
    end

    for (genvar i = 0; i < LANES; i++) begin : lane
        logic [IN_WIDTH-1:0] code;
        logic [NUMBER-1:0] number;
        logic [NUMBER-1:0] number_2;
        logic [NUMBER-1:0] rest;
        logic [TOTAL-1:0] product;
        logic [NUMBER-1:0] quotient;
        logic [NUMBER-1:0] quotient_3;
        logic is_tie;
        assign code = data_in_0[i*IN_WIDTH +: IN_WIDTH];
        assign quotient = NUMBER'(product >> SHIFT);
        assign rest = number_2 - quotient * NUMBER'(DIVISOR);
        always_ff @(posedge clk) begin
            if (step) begin
                number <= (NUMBER'($signed({IN_SIGNED != 0 && code[IN_WIDTH-1], code}))
                    << (LEFT + 1)) + OFFSET;
                product <= TOTAL'(number) * TOTAL'(RECIPROCAL);
                number_2 <= number;
                quotient_3 <= quotient;
                is_tie <= ROUNDING == 2 && rest == '0;
            end
        end
        // a tie was rounded up, which is wrong for odd results
        assign result[i*OUT_WIDTH +: OUT_WIDTH]
            = OUT_WIDTH'(quotient_3 - (NUMBER'(1) << RAISED) - NUMBER'(is_tie && quotient_3[0]));
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(result), .data_in_0_valid(valid[3]), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
