"""The import paths that users, labs and scripts rely on."""

import importlib
import pkgutil
import re
import subprocess
import sys

import pytest

import chop

# module: the names that it has; a line that begins with spaces goes on with the one above
LISTED = """
chop: MaseGraph passes __version__
chop.ir: MaseGraph MaseTracer
chop.ir.graph: MaseGraph MaseMetadata
chop.ir.graph.mase_graph: MaseGraph MaseTracer
chop.ir.graph.mase_metadata: MaseMetadata
chop.ir.graph.mase_graph_metadata: MaseGraphMetadata
chop.numerics: FORMATS NumberFormat
chop.actions: test train validate
chop.actions.search: Runner RunnerContext SEARCH_STRATEGY_MAP SamplerContext SearchSpaceBase
    SearchStrategyOptuna Strategy Trial get_hw_runner get_sw_runner metric register_runner
    register_search_space register_strategy
chop.actions.search.search: parse_search_config search
chop.actions.search.search_space: SEARCH_SPACE_MAP SearchSpaceBase get_search_space_cls
chop.actions.search.search_space.base: SearchSpaceBase
chop.actions.search.strategies: SEARCH_STRATEGY_MAP get_search_strategy_cls
chop.actions.search.strategies.base: SearchStrategyBase
chop.actions.search.strategies.optuna: SearchStrategyOptuna
chop.cli: ChopCLI
chop.dataset: AVAILABLE_DATASETS MaseDataModule MaseDatasetInfo add_dataset_info get_dataset
    get_dataset_info
chop.models: MODELS MaseModelInfo get_model get_model_info get_tokenizer model
chop.models.physical: PHYSICAL_MODELS
chop.models.toy: TOY_MODELS
chop.models.vision: VISION_MODELS
chop.methods.population: PopulationOutcome Report Unfit reason_against train_population
chop.user_code: import_user_file
chop.pipelines: AutoPipeline CompressionPipeline
chop.tools.huggingface: get_tokenized_dataset get_trainer
chop.tools: InputGenerator deepgetattr get_cf_args get_dummy_input get_logger
    get_tokenized_dataset get_trainer load_config load_model parse_accelerator
    post_parse_load_config set_logging_verbosity
chop.tools.checkpoint_load: load_model
chop.tools.config_load: load_config post_parse_load_config save_config
chop.tools.get_input: InputGenerator get_cf_args get_dummy_input
chop.tools.utils: deepgetattr deepsetattr generate_truth_table init_Conv2dLUT_weight
    init_LinearLUT_weight parse_accelerator
chop.nn.quantized.modules.linear: LinearBinaryScaling LinearInteger
chop.nn.quantized.modules.conv2d: Conv2dBinaryScaling
chop.nn.quantized.modules: AdaptiveAvgPool2dInteger AvgPool2dBinary Conv2dBinaryScaling
chop.tools.logger: get_logger root_logger set_logging_verbosity
chop.passes.graph.analysis.utils: fetch_attr get_hardware_nodes get_input_nodes get_output_nodes
    is_seq_blocks_parameter is_tensor_constant load_arg match_and_filter
chop.passes.graph.utils: check_func check_func_type deepcopy_mase_graph deepgetattr deepsetattr
    get_input_index get_mase_op get_mase_type get_module_by_name get_module_by_target
    get_node_actual_target get_node_by_name get_node_target_by_name get_parent_name
    get_similar_node_actual_target init_project isinstance_but_not_subclass match_a_pattern v2p vf
chop.passes.graph.analysis.cost: RULES calculate_modules rule
chop.testing.audit: MacCounter
chop.passes.graph.analysis.flop_estimator.calculator.calc_modules: calculate_modules
chop.passes.graph.analysis.quantization: calculate_flops_pass
chop.nn.modules: Identity LoRALinear
chop.passes.graph.transforms.redefine: reestimate_batch_norm repeatable_blocks width_groups
chop.passes.module: report_trainable_parameters_analysis_pass
chop.passes.graph.analysis.statistical_profiler.stat: STAT_NAME_TO_CLS create_new_stat
chop.ir.common: MASE_BUILTIN_FUNCS MASE_HARDWARE_TOOLCHAIN MASE_IMPLICIT_FUNCS MASE_MODULES
    MASE_MODULE_RELATED_FUNCS MASE_TYPES MASE_TYPE_MAP
chop.passes.graph.analysis: add_common_metadata_analysis_pass add_hardware_metadata_analysis_pass
    add_software_metadata_analysis_pass calculate_flops_analysis_pass calibrate_analysis_pass
    cost_analysis_pass hook_inspection_analysis_pass init_metadata_analysis_pass
    profile_statistics_analysis_pass report_graph_analysis_pass
    report_node_hardware_type_analysis_pass report_node_meta_param_analysis_pass
    report_node_shape_analysis_pass
    report_node_type_analysis_pass sensitivity_analysis_pass verify_common_metadata_analysis_pass
    verify_hardware_metadata_analysis_pass verify_metadata_analysis_pass
    verify_software_metadata_analysis_pass
chop.models.toys: ToyNet TOY_MODELS
chop.models.toys.toy: ToyNet ToyConvNet
chop.models.toys.toy_custom_fn: ToyCustomFnNet
chop.models.toy.toy: ToyNet
chop.models.toy.toy_custom_fn: ToyCustomFnNet
chop.models.utils: MaseModelInfo ModelSource ModelTaskType get_model_info register_mase_model
chop.passes.graph.analysis.pruning.calculate_sparsity: add_pruning_metadata_analysis_pass
chop.passes.graph.analysis.pruning.calculate_natural_sparsity:
    add_natural_sparsity_metadata_analysis_pass
chop.passes.graph.analysis.pruning.hook_inspector: hook_inspection_analysis_pass
chop.passes.graph.analysis.verify.verify: verify_metadata_analysis_pass
chop.passes.module.transforms: quantize_module_transform_pass
chop.passes.module.transforms.quantize: quantize_module_transform_pass
"""
PATHS = {
    module: names.split()
    for module, names in re.findall(r"^(\S+):(.*(?:\n +.*)*)", LISTED, re.MULTILINE)
}
PATHS["chop.passes.graph.common"] = PATHS["chop.ir.common"]
PASSES = PATHS["chop.passes.graph.analysis"]
PATHS["chop.passes"] = [*PASSES, "graph", "PASSES", "Pipeline", "graph_pass"]
PATHS["chop.passes.graph"] = [*PASSES, "PASSES", "ANALYSIS_PASSES", "TRANSFORM_PASSES"]
HEAVY = ["optuna", "lightning", "lightning_fabric", "transformers", "pandas", "tensorboard"]
HEAVY += ["datasets", "onnx", "ray", "pydantic", "typer", "rich"]


@pytest.mark.parametrize("path", PATHS)
def test_every_documented_name_is_importable(path):
    module = importlib.import_module(path)
    missing = [name for name in PATHS[path] if not hasattr(module, name)]
    assert not missing


def test_what_a_module_lists_as_public_exists():
    for info in pkgutil.walk_packages(chop.__path__, "chop."):
        if info.name == "chop.__main__":
            continue
        module = importlib.import_module(info.name)
        missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
        assert not missing, info.name


def test_a_former_path_has_the_objects_of_the_present_one_and_no_others():
    former = importlib.import_module("chop.models.toys.toy")
    present = importlib.import_module("chop.models.toy")
    assert former.ToyNet is present.ToyNet
    assert "ToyNet" in dir(former)
    with pytest.raises(AttributeError, match=r"'chop.models.toys.toy' has no attribute 'ToyNot'"):
        _ = former.ToyNot
    with pytest.raises(ImportError, match="cannot import name 'ToyNot'"):
        exec("from chop.models.toys.toy import ToyNot")
    names = {}
    exec("from chop.models.toys.toy import *", names)
    assert names["ToyNet"] is present.ToyNet


@pytest.mark.parametrize("path", ["chop.models.toyz", "chop.models.toys.tory", "chop.utils"])
def test_paths_that_never_existed_are_still_missing(path):
    with pytest.raises(ModuleNotFoundError, match="No module named 'chop"):
        importlib.import_module(path)


def test_modules_can_be_imported_from_former_packages():
    code = "from chop.passes.graph.analysis.verify import verify; from chop.models.toys import toy"
    names = {}
    exec(code, names)
    assert names["verify"].__name__ == "chop.passes.graph.analysis.verify.verify"
    assert hasattr(names["toy"], "ToyNet")


def test_every_registered_pass_is_exported_at_all_three_levels():
    from chop import passes

    for registered in passes.PASSES.values():
        if not registered.__module__.startswith("chop."):
            continue  # another test's
        name = registered.__name__
        assert getattr(passes, name) is registered
        assert getattr(passes.graph, name) is registered
        assert name in passes.__all__
        assert name.endswith(f"_{registered.kind}_pass")


def test_the_package_says_clearly_what_it_does_not_have():
    with pytest.raises(AttributeError, match="no attribute 'MaseGrph'"):
        _ = chop.MaseGrph
    with pytest.raises(AttributeError, match="no attribute 'SECRET_PASSES'"):
        _ = chop.passes.graph.SECRET_PASSES


def _modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in run.stdout.split()}


def test_importing_passes_and_models_stays_light(after_imports):
    loaded = {name.partition(".")[0] for name in after_imports["modules"]}
    assert not loaded & set(HEAVY)


def test_what_users_metrics_and_strategies_need_does_not_import_torch():
    loaded = _modules_after("from chop.actions.search import Runner, Strategy, metric")
    assert "torch" not in loaded


def test_the_command_line_starts_without_torch():
    loaded = _modules_after(
        "import contextlib, io, chop.cli\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    chop.cli.main(['--help'])"
    )
    assert "typer" in loaded
    assert not loaded & {"torch", "numpy", "pydantic", *HEAVY} - {"typer", "rich"}
