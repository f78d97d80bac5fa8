fastfd_add_test(transport_layout_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/transport_layout_test.cpp
  DEPENDS fastfd::layout fastfd::core)
fastfd_add_test(transport_doorbell_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/transport_doorbell_test.cpp
  DEPENDS fastfd::transport)
fastfd_add_test(transport_ports_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/transport_ports_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/transport_faults_test.cpp
  DEPENDS fastfd::transport fastfd::layout)
fastfd_add_test(transport_handshake_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/transport_handshake_test.cpp
          ${CMAKE_CURRENT_LIST_DIR}/transport_shape_test.cpp
  DEPENDS fastfd::transport fmt::fmt)
fastfd_add_test(transport_nccl_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/transport_nccl_test.cpp
  DEPENDS fastfd::transport fastfd::layout fmt::fmt)
fastfd_add_test(transport_device_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/transport_device_test.cpp
  DEPENDS fastfd::transport fastfd::layout fmt::fmt)
