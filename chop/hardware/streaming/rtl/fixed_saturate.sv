// min(max(x, LOW), HIGH). A bound may be far beyond the range of x or of the result, as those of
// formats with a zero point are, so both are compared with all their bits.
module fixed_saturate #(
    parameter int IN_WIDTH = 9,
    parameter int OUT_WIDTH = 8,
    parameter logic signed [63:0] LOW = -64'sd128,
    parameter logic signed [63:0] HIGH = 64'sd127
) (
    input  logic signed [IN_WIDTH-1:0] x,
    output logic [OUT_WIDTH-1:0] result
);
    localparam int WIDTH = IN_WIDTH > 64 ? IN_WIDTH : 64;

    logic signed [WIDTH-1:0] wide;

    assign wide = WIDTH'(x);
    assign result = wide < WIDTH'(LOW) ? OUT_WIDTH'(LOW)
        : wide > WIDTH'(HIGH) ? OUT_WIDTH'(HIGH) : OUT_WIDTH'(wide);
endmodule
