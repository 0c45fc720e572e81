set encoding utf8
set grid ytics lc rgb '#dddddd'
unset key
set terminal svg size 640,400 noenhanced font 'sans,12' background 'white'
set output 'cow-pressure-share.svg'
set title 'cow/pressure: share'
set ylabel '%, more is better'
set xlabel 'after, s'
set xrange [0:*]
set yrange [0:*]
set xtics auto
set key bottom right
$c0 << EOD
0.0 25.0
5.0 30.0
60.0 50.0
EOD
$c1 << EOD
0.0 25.0
5.0 40.0
60.0 60.0
EOD
$c2 << EOD
0.0 25.0
5.0 95.0
60.0 100.0
EOD
plot $c0 using 1:2 with linespoints pt 6 ps 0.8 lw 2 lc rgb '#e0a020' title 'off', $c1 using 1:2 with linespoints pt 4 ps 0.8 lw 2 lc rgb '#4080b0' title 'stock', $c2 using 1:2 with linespoints pt 7 ps 0.8 lw 2 lc rgb '#202050' title 'series'
unset key
unset xlabel
set terminal svg size 480,340 noenhanced font 'sans,12' background 'white'
set output 'cow-pressure-fault-time-p99.svg'
set title 'cow/pressure: fault time, p99'
set ylabel 'us, less is better'
set xrange [-0.6:2.6]
set yrange [0.0:225.8604]
set xtics ('off' 0, 'stock' 1, 'series' 2)
$d0 << EOD
-0.2250 195.28
-0.1750 195.41
-0.1250 197.98
-0.0750 201.59
-0.0250 198.36
0.0250 208.76
0.0750 200.09
0.1250 200.7
0.1750 202.67
0.2250 209.13
EOD
$m0 << EOD
0 200.39499999999998 0.35
EOD
$d1 << EOD
0.7750 170.82
0.8250 179.43
0.8750 177.05
0.9250 180.58
0.9750 177.65
1.0250 180.64
1.0750 188.07
1.1250 179.11
1.1750 170.29
1.2250 182.65
EOD
$m1 << EOD
1 178.815 0.35
EOD
$d2 << EOD
1.7750 124.4
1.8250 120.81
1.8750 118.58
1.9250 122.79
1.9750 118.46
2.0250 118.6
2.0750 129.9
2.1250 114.16
2.1750 118.45
2.2250 121.85
EOD
$m2 << EOD
2 120.685 0.35
EOD
plot $d0 using 1:2 with points pt 6 ps 0.8 lc rgb '#e0a020', $m0 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#e0a020', $d1 using 1:2 with points pt 4 ps 0.8 lc rgb '#4080b0', $m1 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#4080b0', $d2 using 1:2 with points pt 7 ps 0.8 lc rgb '#202050', $m2 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#202050'
set terminal svg size 480,340 noenhanced font 'sans,12' background 'white'
set output 'cow-pressure-rate-4k.svg'
set title 'cow/pressure: rate|4k'
set ylabel 'MB/s, more is better'
set xrange [-0.6:2.6]
set yrange [0.0:1510.056]
set xtics ('off' 0, 'stock' 1, 'series' 2)
$d0 << EOD
-0.2000 1306.0
-0.1000 1297.4
0.0000 1300.5
0.1000 1306.1
0.2000 1291.5
EOD
$m0 << EOD
0 1300.5 0.35
EOD
$d1 << EOD
0.8000 1299.7
0.9000 1308.7
1.0000 1315.3
1.1000 1314.4
1.2000 1315.3
EOD
$m1 << EOD
1 1314.4 0.35
EOD
$d2 << EOD
1.8000 1392.2
1.9000 1380.5
2.0000 1398.2
2.1000 1376.7
2.2000 1382.0
EOD
$m2 << EOD
2 1382.0 0.35
EOD
plot $d0 using 1:2 with points pt 6 ps 0.8 lc rgb '#e0a020', $m0 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#e0a020', $d1 using 1:2 with points pt 4 ps 0.8 lc rgb '#4080b0', $m1 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#4080b0', $d2 using 1:2 with points pt 7 ps 0.8 lc rgb '#202050', $m2 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#202050'
set terminal svg size 480,340 noenhanced font 'sans,12' background 'white'
set output 'cow-pressure-leaks.svg'
set title 'cow/pressure: leaks'
set ylabel 'pages, less is better'
set xrange [-0.6:2.6]
set yrange [0.0:12.96]
set xtics ('off' 0, 'stock' 1, 'series' 2)
$d0 << EOD
-0.2000 0.0
-0.1000 0.0
0.0000 0.0
0.1000 0.0
0.2000 0.0
EOD
$m0 << EOD
0 0.0 0.35
EOD
$d1 << EOD
0.8000 0.0
0.9000 0.0
1.0000 0.0
1.1000 0.0
1.2000 0.0
EOD
$m1 << EOD
1 0.0 0.35
EOD
$d2 << EOD
1.8000 12.0
1.9000 12.0
2.0000 12.0
2.1000 12.0
2.2000 12.0
EOD
$m2 << EOD
2 12.0 0.35
EOD
plot $d0 using 1:2 with points pt 6 ps 0.8 lc rgb '#e0a020', $m0 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#e0a020', $d1 using 1:2 with points pt 4 ps 0.8 lc rgb '#4080b0', $m1 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#4080b0', $d2 using 1:2 with points pt 7 ps 0.8 lc rgb '#202050', $m2 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#202050'
set terminal svg size 480,340 noenhanced font 'sans,12' background 'white'
set output 'cow-pressure-reused.svg'
set title 'cow/pressure: reused'
set ylabel 'pages, more is better'
set xrange [-0.6:2.6]
set yrange [0.0:41.040000000000006]
set xtics ('off' 0, 'stock' 1, 'series' 2)
$d1 << EOD
0.8000 34.0
0.9000 35.0
1.0000 36.0
1.1000 37.0
1.2000 38.0
EOD
$m1 << EOD
1 36.0 0.35
EOD
$d2 << EOD
1.8000 34.0
1.9000 35.0
2.0000 36.0
2.1000 37.0
2.2000 38.0
EOD
$m2 << EOD
2 36.0 0.35
EOD
plot $d1 using 1:2 with points pt 4 ps 0.8 lc rgb '#4080b0', $m1 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#4080b0', $d2 using 1:2 with points pt 7 ps 0.8 lc rgb '#202050', $m2 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#202050'
set terminal svg size 480,340 noenhanced font 'sans,12' background 'white'
set output 'cow-fork-fork.svg'
set title 'cow/fork: fork'
set ylabel 'us, less is better'
set xrange [-0.6:2.6]
set yrange [0.0:58.887]
set xtics ('off' 0, 'stock' 1, 'series' 2)
$d0 << EOD
-0.2000 50.146
-0.1000 50.367
0.0000 49.836
0.1000 50.1
0.2000 51.13
EOD
$m0 << EOD
0 50.146 0.35
EOD
$d1 << EOD
0.8000 50.645
0.9000 49.48
1.0000 49.983
1.1000 50.49
1.2000 50.793
EOD
$m1 << EOD
1 50.49 0.35
EOD
$d2 << EOD
1.8125 54.016
1.9375 54.525
2.0625 53.035
2.1875 54.009
EOD
$m2 << EOD
2 54.0125 0.35
EOD
plot $d0 using 1:2 with points pt 6 ps 0.8 lc rgb '#e0a020', $m0 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#e0a020', $d1 using 1:2 with points pt 4 ps 0.8 lc rgb '#4080b0', $m1 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#4080b0', $d2 using 1:2 with points pt 7 ps 0.8 lc rgb '#202050', $m2 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#202050'
set terminal svg size 480,340 noenhanced font 'sans,12' background 'white'
set output 'cow-fork-exit.svg'
set title 'cow/fork: exit'
set ylabel 'us, less is better'
set xrange [-0.6:2.6]
set yrange [0.0:82.58976]
set xtics ('off' 0, 'stock' 1, 'series' 2)
$d0 << EOD
-0.2000 68.707
-0.1000 71.433
0.0000 70.637
0.1000 67.37
0.2000 71.661
EOD
$m0 << EOD
0 70.637 0.35
EOD
$d1 << EOD
0.8000 74.515
0.9000 68.619
1.0000 69.993
1.1000 70.927
1.2000 76.472
EOD
$m1 << EOD
1 70.927 0.35
EOD
$d2 << EOD
1.8125 68.644
1.9375 69.711
2.0625 75.248
2.1875 73.144
EOD
$m2 << EOD
2 71.42750000000001 0.35
EOD
plot $d0 using 1:2 with points pt 6 ps 0.8 lc rgb '#e0a020', $m0 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#e0a020', $d1 using 1:2 with points pt 4 ps 0.8 lc rgb '#4080b0', $m1 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#4080b0', $d2 using 1:2 with points pt 7 ps 0.8 lc rgb '#202050', $m2 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#202050'
set terminal svg size 480,340 noenhanced font 'sans,12' background 'white'
set output 'ksm-scan-instructions-4k-pages.svg'
set title 'ksm/scan: instructions, 4k pages'
set ylabel 'Minsn, less is better'
set xrange [-0.6:2.6]
set yrange [0.0:4320.0]
set xtics ('off' 0, 'stock' 1, 'series' 2)
$d0 << EOD
-0.1250 4000.0
0.1250 4000.0
EOD
$m0 << EOD
0 4000.0 0.35
EOD
$d1 << EOD
0.8750 4000.0
1.1250 4000.0
EOD
$m1 << EOD
1 4000.0 0.35
EOD
$d2 << EOD
1.8750 3999.0
2.1250 3999.0
EOD
$m2 << EOD
2 3999.0 0.35
EOD
plot $d0 using 1:2 with points pt 6 ps 0.8 lc rgb '#e0a020', $m0 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#e0a020', $d1 using 1:2 with points pt 4 ps 0.8 lc rgb '#4080b0', $m1 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#4080b0', $d2 using 1:2 with points pt 7 ps 0.8 lc rgb '#202050', $m2 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#202050'
set terminal svg size 480,340 noenhanced font 'sans,12' background 'white'
set output 'ksm-scan-merged.svg'
set title 'ksm/scan: merged'
set ylabel 'pages, more is better'
set xrange [-0.6:2.6]
set yrange [0.0:758.1600000000001]
set xtics ('off' 0, 'stock' 1, 'series' 2)
$d0 << EOD
-0.1250 701.0
0.1250 702.0
EOD
$m0 << EOD
0 701.5 0.35
EOD
$d1 << EOD
0.8750 701.0
1.1250 702.0
EOD
$m1 << EOD
1 701.5 0.35
EOD
$d2 << EOD
1.8750 701.0
2.1250 702.0
EOD
$m2 << EOD
2 701.5 0.35
EOD
plot $d0 using 1:2 with points pt 6 ps 0.8 lc rgb '#e0a020', $m0 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#e0a020', $d1 using 1:2 with points pt 4 ps 0.8 lc rgb '#4080b0', $m1 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#4080b0', $d2 using 1:2 with points pt 7 ps 0.8 lc rgb '#202050', $m2 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#202050'
set terminal svg size 480,340 noenhanced font 'sans,12' background 'white'
set output 'ksm-single-it-s.svg'
set title 'ksm/single: it''s'
set ylabel 'us, less is better'
set xrange [-0.6:2.6]
set yrange [0.0:5.4]
set xtics ('off' 0, 'stock' 1, 'series' 2)
$d0 << EOD
0.0000 5.0
EOD
$m0 << EOD
0 5.0 0.35
EOD
$d1 << EOD
1.0000 5.0
EOD
$m1 << EOD
1 5.0 0.35
EOD
$d2 << EOD
2.0000 4.0
EOD
$m2 << EOD
2 4.0 0.35
EOD
plot $d0 using 1:2 with points pt 6 ps 0.8 lc rgb '#e0a020', $m0 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#e0a020', $d1 using 1:2 with points pt 4 ps 0.8 lc rgb '#4080b0', $m1 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#4080b0', $d2 using 1:2 with points pt 7 ps 0.8 lc rgb '#202050', $m2 using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '#202050'
set terminal svg size 860,310 noenhanced font 'sans,12' background 'white'
set output 'summary.svg'
set title 'series against stock, right is better'
unset ylabel
set xlabel 'change, % (bar: 95 % interval; filled: star)'
set xtics auto
set xrange [*:*]
set yrange [-0.7:9.7]
set grid xtics
set lmargin 33
set arrow 1 from 0, graph 0 to 0, graph 1 nohead lc rgb '#888888'
set ytics ('cow/fork fork' 0, 'cow/fork exit' 1, 'cow/pressure reused' 2, 'ksm/scan merged' 3, 'ksm/scan instructions, 4k pages' 4, 'cow/pressure rate|4k' 5, 'ksm/single it''s' 6, 'cow/pressure fault time, p99' 7, 'cow/pressure share after 60 s' 8, 'cow/pressure share after 5 s' 9)
$s << EOD
0 -6.976629035452567 -8.983957219251339 -5.040602099425618 7
1 -0.7056551101837133 -6.379798948214368 8.277524778998117 6
2 0.0 -8.333333333333334 8.333333333333334 6
3 0.0 -0.14255167498218105 0.14255167498218105 6
4 0.025 0.025 0.025 7
5 5.143031040779055 4.739805234327446 6.809190505173463 7
6 20.0 20.0 20.0 6
7 32.50845846265694 30.12331180270111 35.17881609484663 7
8 66.66666666666667 66.66666666666667 66.66666666666667 6
9 137.5 137.5 137.5 6
EOD
plot $s using 2:1:3:4 with xerrorbars pt -1 lc rgb '#202050', $s using 2:1:5 with points pt variable ps 0.9 lc rgb '#202050'
