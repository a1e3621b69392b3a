// The sum of 2^LEVELS terms, with a register after each level of additions.
module fixed_adder_tree #(
    parameter int LEVELS = 2,
    parameter int WIDTH = 16
) (
    input  logic clk,
    input  logic enable,
    input  logic [(2**LEVELS)*WIDTH-1:0] terms,
    output logic [WIDTH-1:0] sum
);
    // node i is the sum of nodes 2 i and 2 i + 1; the last half are the terms
    logic [(2**(LEVELS+1))*WIDTH-1:WIDTH] nodes;

    assign nodes[(2**LEVELS)*WIDTH +: (2**LEVELS)*WIDTH] = terms;
    assign sum = nodes[WIDTH +: WIDTH];

    for (genvar i = 1; i < 2**LEVELS; i++) begin : add
        always_ff @(posedge clk)
            if (enable)
                nodes[i*WIDTH +: WIDTH]
                    <= nodes[2*i*WIDTH +: WIDTH] + nodes[(2*i+1)*WIDTH +: WIDTH];
    end
endmodule
