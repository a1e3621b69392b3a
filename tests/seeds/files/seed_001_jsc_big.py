class JSC_Big(nn.Module):
    def __init__(self, info):
        super(JSC_Big, self).__init__()
        self.seq_blocks = nn.Sequential(
            # 1st LogicNets Layer
            nn.BatchNorm1d(16),  # input_quant       # 0
            nn.ReLU(16),  # 1
            nn.Linear(16, 32),  # linear              # 2

            # 2nd LogicNets Layer
            nn.BatchNorm1d(32),  # output_quant       # 3
            nn.ReLU(32), # 4
            nn.Linear(32, 16),  # linear              # 5

            # 3th LogicNets Layer
            nn.BatchNorm1d(16),  # output_quant       # 6
            nn.ReLU(16),  # 7
            nn.Linear(16, 8),  # linear              # 8

            # 4th LogicNets Layer
            nn.BatchNorm1d(8),  # output_quant       # 9
            nn.ReLU(8),  # 10
            nn.Linear(8, 5),  # linear              # 11

            nn.ReLU(5),  # 12
        )

    def forward(self, x):
        return self.seq_blocks(x)
