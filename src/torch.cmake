# libtorch (find_torch.cmake) as one imported target, with and without a CUDA toolkit. Its include folder goes last (-idirafter), since the wheel's own fmt would shadow the system's.
add_library(torch_cpu INTERFACE IMPORTED GLOBAL)
target_compile_options(torch_cpu INTERFACE "SHELL:-idirafter ${ZEA_TORCH_ROOT}/include")
target_link_libraries(torch_cpu INTERFACE ${ZEA_TORCH_ROOT}/lib/libtorch_cpu.so ${ZEA_TORCH_ROOT}/lib/libc10.so)
target_link_options(torch_cpu INTERFACE -Wl,--allow-shlib-undefined)

add_library(zea_engine STATIC)
target_include_directories(zea_engine PUBLIC ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(zea_engine PUBLIC zea_comm zea_data zea_log torch_cpu PRIVATE zea_warnings)
target_precompile_headers(zea_engine PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/torch_pch.hpp)
