# How localllm builds llama.cpp. CMake reads this file inside the project() call of llama-cpp-python (0.3.36), whichever
# installer runs it: CMAKE_PROJECT_llama_cpp_INCLUDE names it. See pyproject.toml beside this file.

# Layers on other machines. What somebody sets for himself comes first.
if(NOT DEFINED GGML_RPC)
    set(GGML_RPC ON)
endif()

# llama-common and the HTTP client that only it uses are a third of the compile time, and no library of the package links
# them. llama-cpp-python forces the cache variable on; a variable of this name comes before it (policies CMP0077, CMP0126).
set(LLAMA_BUILD_COMMON OFF)

# The 45 small files of libmtmd's models include the same headers: together, as llama.cpp compiles its own models, they take
# a fifth of the time.
function(localllm_compile_models_together)
    if(NOT TARGET mtmd)
        return()
    endif()
    get_target_property(sources mtmd SOURCES)
    get_target_property(folder mtmd SOURCE_DIR)
    list(FILTER sources EXCLUDE REGEX "^models/")
    list(TRANSFORM sources PREPEND "${folder}/")
    set_source_files_properties(${sources} TARGET_DIRECTORY mtmd PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
    target_compile_options(mtmd PRIVATE $<$<CXX_COMPILER_ID:MSVC>:/bigobj>)
endfunction()
cmake_language(DEFER CALL localllm_compile_models_together)

# The wheel has each library six times: llama.cpp installs into lib/ what llama-cpp-python installs into llama_cpp/lib/, and
# a wheel has no links, so that each name of a version (libllama.so, .so.0, .so.0.5.0) is a copy. One is loaded.
function(localllm_install_once)
    get_property(backends CACHE GGML_AVAILABLE_BACKENDS PROPERTY VALUE)
    foreach(target IN ITEMS llama mtmd ggml ggml-base LISTS backends)
        if(TARGET ${target})
            set_property(TARGET ${target} PROPERTY VERSION)
            set_property(TARGET ${target} PROPERTY SOVERSION)
        endif()
    endforeach()
    # llama-cpp-python knows the backends of one name each, not the variants of GGML_CPU_ALL_VARIANTS
    foreach(backend IN LISTS backends)
        llama_cpp_python_install_target(${backend})
    endforeach()
    if(SKBUILD_PLATLIB_DIR)  # the folder that becomes the wheel, never one of the system
        install(CODE "file(REMOVE_RECURSE
            [==[${SKBUILD_PLATLIB_DIR}/lib]==] [==[${SKBUILD_PLATLIB_DIR}/bin]==] [==[${SKBUILD_PLATLIB_DIR}/include]==])")
    endif()
endfunction()
cmake_language(DEFER CALL localllm_install_once)
