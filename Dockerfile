# CPU image. Build: docker build -t fastfd .
# Run: docker run --rm -p 8000:8000 fastfd
FROM debian:12 AS build
WORKDIR /src
COPY scripts/install-deps scripts/install-deps
RUN scripts/install-deps --no-lint && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt CMakePresets.json ./
COPY cmake cmake
COPY include include
COPY kernels kernels
COPY proto proto
COPY src src
COPY configs configs
RUN cmake --preset release -DFASTFD_BUILD_TESTS=OFF -DFASTFD_BUILD_BENCHMARKS=OFF \
      -DCMAKE_INSTALL_PREFIX=/opt/fastfd \
 && cmake --build --preset release --target fastfd \
 && cmake --install build/release --strip

FROM debian:12-slim
RUN apt-get -q update \
 && apt-get -q -y install --no-install-recommends \
      libfmt9 libgrpc++1.51 libpcre2-8-0 libprometheus-cpp-core1.0 libprotobuf32 libspdlog1.10 \
      libutf8proc2 libyaml-cpp0.7 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home fastfd
COPY --from=build /opt/fastfd /opt/fastfd
COPY models/atlas-moe /models/atlas-moe
ENV PATH=/opt/fastfd/bin:$PATH
USER fastfd
WORKDIR /
EXPOSE 8000
# SIGTERM lets running requests finish.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --start-period=60s CMD ["fastfd", "status"]
ENTRYPOINT ["fastfd"]
CMD ["serve", "/models/atlas-moe", "--http", "0.0.0.0:8000"]
