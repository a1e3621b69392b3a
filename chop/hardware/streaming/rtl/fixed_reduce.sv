// The largest of several codes, or their sum, in each lane.
module fixed_reduce #(
    parameter int LANES = 1,
    parameter int WIDTH = 8,
    parameter int TERMS = 2,
    parameter int IS_SIGNED = 1,
    parameter int IS_SUM = 0
) (
    input  logic [TERMS*LANES*WIDTH-1:0] terms,
    output logic [LANES*WIDTH-1:0] result
);
    for (genvar i = 0; i < LANES; i++) begin : lane
        // partial[t] is the result of terms 0 to t
        logic [TERMS*WIDTH-1:0] partial;
        assign partial[WIDTH-1:0] = terms[i*WIDTH +: WIDTH];
        for (genvar t = 1; t < TERMS; t++) begin : term
            logic [WIDTH-1:0] x;
            logic [WIDTH-1:0] y;
            assign x = partial[(t-1)*WIDTH +: WIDTH];
            assign y = terms[(t*LANES+i)*WIDTH +: WIDTH];
            if (IS_SUM != 0) begin : sum
                assign partial[t*WIDTH +: WIDTH] = x + y;
            end else if (IS_SIGNED != 0) begin : signed_maximum
                assign partial[t*WIDTH +: WIDTH] = $signed(x) > $signed(y) ? x : y;
            end else begin : maximum
                assign partial[t*WIDTH +: WIDTH] = x > y ? x : y;
            end
        end
        assign result[i*WIDTH +: WIDTH] = partial[(TERMS-1)*WIDTH +: WIDTH];
    end
endmodule
